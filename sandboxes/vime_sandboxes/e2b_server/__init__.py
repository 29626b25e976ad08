"""A server that speaks E2B's protocol, on top of any sandbox backend of ours.

Code that was written for E2B runs against it unchanged, with no cloud: set `E2B_API_URL` and
`E2B_SANDBOX_URL` to its address and `E2B_API_KEY` to its key.

    app.py         create_app: routes, keys, tokens
    serve.py       serve: listen on an address
    boxes.py       the sandboxes, their time to live, pause, snapshots
    control.py     REST: create, list, kill, timeout, pause, connect, snapshot, fork, metrics
    files.py       REST of one sandbox: health, files
    processes.py   Connect-RPC of one sandbox: start, input, signals
    filesystem.py  Connect-RPC of one sandbox: stat, list, make, move, remove

Commands start in the sandbox's working directory, which on local sandboxes is also found as /home/user.

What differs from E2B: memory is never part of a pause, a snapshot or a fork (programs end, files stay); there
are no pseudo-terminals, no volumes, no public ports and no watching of folders (each is refused by name);
users other than the default one exist only where the backend can be them. The network is off unless the
server's operator and the client both ask for it; hosts that a client names are reached through a proxy.
"""

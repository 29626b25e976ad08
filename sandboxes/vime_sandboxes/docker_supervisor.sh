# Process 1 of a container whose image has no Python. The owner says on standard input what to do; when that
# ends, the container ends. Commands do not run here: each is an exec of the daemon's. Only what is built into
# every sh is used: at its process limit a sandbox can start nothing.

# status: `last` becomes the line of $folder/stat.
status() {
    last=
    while IFS= read -r line || [ -n "$line" ]; do last=$line; done 2>/dev/null <"$folder/stat"
}

# tree MARK PID: `found` becomes the processes that have MARK in their environment, are of the session PID, or
# descend from those; `all` becomes every process that runs, each as pid:parent. `unsure` is set where there is
# one whose environment could not be read: while it becomes another program (execve) it shows none.
tree() {
    found=" $2 " all= unsure=
    for folder in /proc/[0-9]*; do
        pid=${folder#/proc/} line=
        case $pid in 1 | $$) continue ;; esac
        status
        [ -n "$last" ] || continue
        set -- "$1" "$2" ${last##*) } # state, parent, group, session, ...
        case $3 in Z | X) continue ;; esac
        all="$all $pid:$4"
        case $found in *" $pid "*) continue ;; esac
        if [ "$6" = "$2" ]; then
            found="$found$pid "
            continue
        fi
        while IFS= read -r line || [ -n "$line" ]; do
            case $line in *"VIME_EXEC=$1"*)
                found="$found$pid "
                continue 2
                ;;
            esac
        done 2>/dev/null <"$folder/environ"
        # Fields 50 and 51 are where its environment begins and ends: elsewhere in each program, 0 in between.
        status
        before=${50:-0}-${51:-0}
        set -- "$1" "$2" ${last##*) }
        [ "$before" = "${50:-0}-${51:-0}" ] && [ "$before" != 0-0 ] || unsure=1
    done
    more=1
    while [ -n "$more" ]; do
        more=
        for entry in $all; do
            case $found in *" ${entry%%:*} "*) continue ;; esac
            case $found in *" ${entry##*:} "*) found="$found${entry%%:*} " more=1 ;; esac
        done
    done
}

# end MARK PID: stop all of a tree, so that nothing can be started any more, then kill it and see it dead.
end() {
    seen=" " round=0 looks=0
    while [ $round -lt 1000 ]; do
        round=$((round + 1)) new= left=
        tree "$1" "$2"
        for pid in $found; do
            case $seen in *" $pid "*) continue ;; esac
            seen="$seen$pid "
            kill -s STOP "$pid" 2>/dev/null && new=1
        done
        [ -n "$new" ] && continue
        for entry in $all; do
            case $seen in *" ${entry%%:*} "*)
                left=1
                kill -s KILL "${entry%%:*}" 2>/dev/null
                ;;
            esac
        done
        if [ -z "$left" ]; then
            [ -n "$unsure" ] && [ $looks -lt 20 ] || return
            looks=$((looks + 1))
        fi
    done
    kill -s KILL -- -1 # hopeless: all but this
}

echo ready
while read -r id word first second; do
    case $word in
    end) end "$first" "$second" ;;
    signal) kill -s "$first" "$second" 2>/dev/null ;;
    esac
    echo "done $id"
    jobs >/dev/null 2>&1 # reaps the orphans that have ended
done

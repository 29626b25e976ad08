"""One calculator environment in four libraries, and what plays it. Each runs in its library's own venv."""

"""How gunicorn serves Rollcall, in the demo and in production; the command line may say otherwise."""

from __future__ import annotations

import os

workers = int(os.environ.get("WEB_WORKERS") or "1")
threads = int(os.environ.get("WEB_THREADS") or "4")
worker_class = "gthread"
# A container's disk may be slow; a file in memory is enough for a heartbeat.
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108  gunicorn makes it private
control_socket_disable = True
timeout = 60
graceful_timeout = 5
accesslog = "-"
# The path without its query: what is searched for is nobody's business.
access_log_format = '%(t)s %(h)s %({x-request-id}o)s "%(m)s %(U)s" %(s)s %(b)s %(M)sms'

#!/bin/sh
# Installs the servers and the browser that the named legs of the tests need: with apt-get where it
# may, else it says what to type. Debian's own services are not started.
set -u
legs=" $* "
missing=''
need() { # need PACKAGES TEST…
    packages=$1; shift
    "$@" >/dev/null 2>&1 || missing="$missing $packages"
}
has_postgres() { command -v initdb || ls /usr/lib/postgresql/*/bin/initdb; }
has_fonts() { fc-list 2>/dev/null | grep -qi dejavu; }
has_jwt() { ls /usr/lib/*/slurm-wlm/auth_jwt.so; }
has_faketime() { ls /usr/lib/*/faketime/libfaketimeMT.so.1; }
case "$legs" in *\ postgres\ *|*\ faults\ *|*\ project\ *|*\ bench\ *) need postgresql has_postgres ;; esac
case "$legs" in *\ unit\ *|*\ postgres\ *|*\ faults\ *|*\ project\ *|*\ bench\ *)
    need redis-server command -v redis-server ;; esac
case "$legs" in *\ browser\ *|*\ slurm\ *)
    need chromium command -v chromium
    need curl command -v curl
    need 'fonts-dejavu-core fontconfig' has_fonts ;; esac
need_daemons() { # need_daemons PROGRAM:PACKAGE…
    for daemon in "$@"; do need "${daemon#*:}" test -x "/usr/sbin/${daemon%:*}"; done
}
case "$legs" in *\ slurm*|*\ bench-slurm\ *)
    need_daemons munged:munge slurmctld:slurmctld slurmd:slurmd slurmdbd:slurmdbd \
        mariadbd:mariadb-server
    need slurm-client command -v sbatch ;; esac
case "$legs" in *\ slurm*)
    need_daemons sshd:openssh-server slurmrestd:slurmrestd
    need sudo test -x /usr/bin/sudo
    need slurm-wlm-jwt-plugin has_jwt
    need libfaketime has_faketime ;; esac
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
    echo "Rollcall: the tests need more than is here; type: sudo apt-get install$missing" >&2
    exit 1
fi
command -v apt-get >/dev/null 2>&1 || { echo "Rollcall: the tests need$missing, and there is no apt-get; install them by hand" >&2; exit 1; }
echo "Rollcall: installing$missing" >&2
log=$(mktemp)
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"
    trap 'rm -f "$policy" "$log"' EXIT
else
    trap 'rm -f "$log"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086  # words on purpose
if ! { apt-get update && apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1 </dev/null; then
    tail -n 15 "$log" >&2
    echo "Rollcall: apt-get could not install$missing; its last words stand above" >&2
    exit 1
fi

#!/bin/sh
# Makes a chroot with the next Debian's Slurm, and a folder of commands that run in it: DIR/bin.
# next-slurm.sh make DIR   says why, and ends with 3, where that cannot be
# next-slurm.sh leave DIR  takes its mounts away; do so before DIR is removed
set -u
suite=trixie
commands='munged slurmctld slurmd slurmdbd slurmrestd mariadbd mariadb-install-db scontrol sbatch squeue
    scancel sinfo sacct sacctmgr sshare sprio sreport sdiag srun'
what=${1:?make or leave}
dir=${2:?a folder}
root=$dir/root
mounts='proc sys dev tmp'

leave() {
    for each in $mounts; do
        mountpoint -q "$root/$each" && umount -l "$root/$each"
    done
}
cannot() { echo "Rollcall: there is no $suite beside this system: $1" >&2; leave; exit 3; }
inside() { # inside COMMAND…
    DEBIAN_FRONTEND=noninteractive chroot "$root" "$@" >>"$dir/log" 2>&1 </dev/null
}
enter() { # what jobs and daemons share with this system: its processes, devices and /tmp
    for each in $mounts; do
        mountpoint -q "$root/$each" && continue
        mount --bind "/$each" "$root/$each" 2>>"$dir/log" ||
            cannot "nothing may be mounted here"
    done
}
make() {
    [ "$(id -u)" = 0 ] || cannot 'it takes root'
    mkdir -p "$dir" || cannot "$dir cannot be made"
    if ! command -v debootstrap >/dev/null; then
        { apt-get update && apt-get install -y --no-install-recommends debootstrap; } \
            >>"$dir/log" 2>&1 </dev/null || cannot 'debootstrap cannot be installed'
    fi
    if [ ! -e "$dir/ready" ]; then
        leave
        rm -rf "$root"
        # The same mirror as this system's.
        mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' |
            grep -v security | head -n 1)
        [ -n "$mirror" ] || cannot 'this system does not say where Debian is'
        echo "Rollcall: making $suite for its Slurm, once; about two minutes" >&2
        debootstrap --variant=minbase "$suite" "$root" "$mirror" >>"$dir/log" 2>&1 ||
            cannot "debootstrap failed: $(tail -n 1 "$dir/log")"
        printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
        chmod 755 "$root/usr/sbin/policy-rc.d"
        cp /etc/hosts "$root/etc/hosts"
        cp /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null
        [ -d /etc/apt/apt.conf.d ] && cp -n /etc/apt/apt.conf.d/*proxy* "$root/etc/apt/apt.conf.d/" 2>/dev/null
        enter
        inside apt-get update || cannot 'its packages cannot be listed'
        inside apt-get install -y --no-install-recommends munge slurmctld slurmd slurm-client \
            slurmdbd slurmrestd slurm-wlm-jwt-plugin mariadb-server ||
            cannot "Slurm cannot be installed: $(tail -n 1 "$dir/log")"
        touch "$dir/ready"
    fi
    enter
    mkdir -p "$dir/bin"
    for each in $commands; do
        # shellcheck disable=SC2016  # for the shell inside
        printf '#!/bin/sh\nexec chroot ${LAB_USER:+--userspec=$LAB_USER} %s /bin/sh -c '\''PATH=/usr/sbin:/usr/bin:/sbin:/bin; cd "$0" 2>/dev/null || cd /; exec "$@"'\'' "$PWD" %s "$@"\n' \
            "$root" "$each" >"$dir/bin/$each"
        chmod 755 "$dir/bin/$each"
    done
}

case $what in
    make) make ;;
    leave) leave ;;
    *) echo 'next-slurm.sh make|leave DIR' >&2; exit 2 ;;
esac

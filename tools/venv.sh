#!/bin/sh
# Makes .venv with the pinned packages: `tools/venv.sh` for the product, `tools/venv.sh dev` for its
# tests too. Quick when nothing changed; one that was interrupted is made again.
set -u
cd "$(dirname "$0")/.." || exit 1
what=${1:-base}
again="make ${MAKE_TARGET:-demo}"
root=''; [ "$(id -u)" = 0 ] || root='sudo '

say() { printf 'Rollcall: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# One at a time, where the tool for it is there.
if command -v flock >/dev/null 2>&1; then exec 9>.venv.lock && flock 9; fi

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

stamp=.venv/rollcall-stamp
files='requirements.txt constraints.txt'; [ "$what" = dev ] && files="$files requirements-dev.txt"
# What the environment was made from: pins, Python, and its own path, which its scripts contain.
wanted() { cat "$@" | cksum; .venv/bin/python -V; pwd; }
sound() { .venv/bin/python -c '' 2>/dev/null && [ ! -e .venv/rollcall-unfinished ]; }
# shellcheck disable=SC2086  # words on purpose
if sound && [ "$(cat "$stamp-$what" 2>/dev/null)" = "$(wanted $files)" ]; then exit 0; fi

free=$(df -Pm . | awk 'NR==2 {print $4}')
need=900; [ "$what" = dev ] && need=1300
if ! sound && [ "${free:-0}" -lt "$need" ]; then
    fail "needs $need MB in $(pwd) for its Python packages, and ${free} MB are free; free some space, then type: $again"
fi

if ! sound || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python=''
    for one in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
        if new_enough "$one"; then python=$one; break; fi
    done
    if [ -z "$python" ]; then
        if command -v python3 >/dev/null 2>&1; then
            fail "needs Python 3.11 or newer, and $(python3 -V 2>&1) is what is here; type: ${root}apt-get install python3.11 python3.11-venv (or PYTHON=/path/to/python3.11 $again)"
        fi
        fail "needs Python 3.11 or newer; type: ${root}apt-get install python3 python3-venv"
    fi
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    # Without the package, `venv` fails but leaves a python behind: ask before.
    "$python" -c 'import ensurepip; ensurepip.version()' >/dev/null 2>&1 ||
        fail "$python lacks its venv module; type: ${root}apt-get install python$version-venv"
    say "making a virtual environment with $("$python" -V)"
    rm -rf .venv
    "$python" -m venv .venv || { rm -rf .venv; fail "could not make the virtual environment .venv; the reason stands above"; }
fi

say "installing $(grep -c '==' requirements.txt) pinned packages and what they need, once; up to a minute"
touch .venv/rollcall-unfinished
list=requirements.txt; [ "$what" = dev ] && list=requirements-dev.txt
if ! PIP_DISABLE_PIP_VERSION_CHECK=1 .venv/bin/python -m pip install --quiet --no-compile --no-input \
        --requirement "$list" --constraint constraints.txt >.venv/rollcall-pip.log 2>&1; then
    tail -n 15 .venv/rollcall-pip.log >&2
    if grep -q 'No space left' .venv/rollcall-pip.log; then
        fail "the disk is full; free some space under $(pwd), then type: $again"
    fi
    fail "pip could not install the packages (its last words stand above); when that is mended, type: $again"
fi
rm -f .venv/rollcall-unfinished
# What the tests need holds what the product needs.
[ "$what" = dev ] && wanted requirements.txt constraints.txt >"$stamp-base"
# shellcheck disable=SC2086  # words on purpose
wanted $files >"$stamp-$what"

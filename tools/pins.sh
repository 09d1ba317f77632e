#!/bin/sh
# Writes constraints.txt anew from what .venv holds: after a pin in requirements*.txt was changed.
set -eu
cd "$(dirname "$0")/.."
{
    echo '# What the pins of requirements*.txt need in turn, so that every install is the same one.'
    echo '# Made again by: tools/pins.sh'
    .venv/bin/python -m pip freeze | .venv/bin/python -c '
import re, sys
plain = lambda name: re.sub(r"[-_.]+", "-", re.split(r"[\[=]", name)[0].strip().lower())
direct = {plain(line) for name in sys.argv[1:] for line in open(name) if "==" in line}
sys.stdout.writelines(line for line in sys.stdin if plain(line) not in direct)
' requirements.txt requirements-dev.txt
} >constraints.new
mv constraints.new constraints.txt

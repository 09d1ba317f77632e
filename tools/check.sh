#!/bin/sh
# Runs the machines that check (pre-commit runs the same list), and names each that objects.
set -u
cd "$(dirname "$0")/.." || exit 1
MAKE_TARGET=check tools/venv.sh dev || exit 1
bin=.venv/bin
data=$(mktemp -d); trap 'rm -rf "$data"' EXIT
unset DATABASE_URL REDIS_URL ROLLCALL_MODE SECRET_KEY DEBUG ALLOWED_HOSTS
export ROLLCALL_DATA="$data"
failed=''
check() { # check NAME COMMAND…
    name=$1; shift
    if "$@" >"$data/out" 2>&1; then printf 'ok      %s\n' "$name"
    else printf 'FAILED  %s\n' "$name"; cat "$data/out"; failed="$failed '$name'"; fi
}
as_in_production() {
    env ROLLCALL_MODE=production ALLOWED_HOSTS=rollcall.example.com \
        SECRET_KEY="$($bin/python -c 'import secrets; print(secrets.token_urlsafe(64))')" \
        DATABASE_URL=postgres://rollcall@localhost/rollcall REDIS_URL=redis://localhost:6379/0 \
        $bin/python manage.py check --deploy --fail-level WARNING
}
check 'ruff check' $bin/ruff check .
check 'ruff format' $bin/ruff format --check .
check 'lint-imports' $bin/lint-imports
check 'mypy' $bin/mypy apps benchmarks manage.py
check 'makemigrations --check' $bin/python manage.py makemigrations --check --dry-run
check 'check' $bin/python manage.py check --fail-level WARNING
check 'check --deploy' as_in_production
check 'spectacular' $bin/python manage.py spectacular --validate --fail-on-warn --file /dev/null
[ -z "$failed" ] || { echo "Checks failed:$failed"; exit 1; }

#!/bin/sh
# Runs every leg of the tests, or the one named by ONLY; each leg is a process of its own.
# ONLY=unit|api|browser|postgres|faults|project|slurm|slurm-next   FULL=1 random tests at full length   ARGS=… for pytest
set -u
cd "$(dirname "$0")/.." || exit 1
all='unit api postgres browser faults project slurm slurm-next'
legs=${ONLY:-$all}
for leg in $legs; do
    case " $all " in *" $leg "*) ;; *)
        echo "Rollcall: there is no leg '$leg' (${all}); type: make test ONLY=unit" >&2; exit 2 ;;
    esac
done
MAKE_TARGET=test tools/venv.sh dev || exit 1
# shellcheck disable=SC2086  # words on purpose
tools/system.sh $legs || exit 1
python=.venv/bin/python
# One seed for the whole run, printed by each leg: the same number repeats it.
: "${HYPOTHESIS_SEED:=$($python -c 'import secrets; print(secrets.randbits(32))')}"
export HYPOTHESIS_SEED
# What the person's own shell says must not reach the tests.
unset DATABASE_URL REDIS_URL ROLLCALL_MODE ROLLCALL_DATA SECRET_KEY DEBUG ALLOWED_HOSTS

run() { # run COMMAND… with the person's ARGS behind it
    # shellcheck disable=SC2086  # words on purpose
    "$@" ${ARGS:-}
}
one() {
    case $1 in
        unit) run $python -m pytest -n 2 tests --ignore=tests/api --ignore=tests/browser \
            --ignore=tests/faults --ignore=tests/project --ignore=tests/slurm ;;
        api) run $python -m pytest -n 2 tests/api ;;
        postgres) run $python -m tests.services postgres -- $python -m pytest -n 2 tests \
            --ignore=tests/engine --ignore=tests/browser --ignore=tests/faults --ignore=tests/project \
            --ignore=tests/slurm ;;
        browser) DJANGO_ALLOW_ASYNC_UNSAFE=true run $python -m pytest tests/browser ;;
        faults) run $python -m pytest tests/faults ;;
        project) run $python -m pytest tests/project ;;
        # Two labs side by side: the tests mostly wait for Slurm.
        slurm) DJANGO_ALLOW_ASYNC_UNSAFE=true run $python -m pytest -n 2 --dist loadfile tests/slurm ;;
        slurm-next) next_slurm ;;
    esac
}

next_slurm() { # the same stories on the next Debian's Slurm; 77: it cannot be made here
    next=${NEXT_SLURM:-/var/tmp/rollcall-next-slurm}
    tools/next-slurm.sh make "$next" || return 77
    set -- tests/slurm/test_stories.py
    if [ "${FULL:-}" = 1 ]; then
        set -- "$@" tests/slurm/test_promises.py tests/slurm/test_hands.py tests/slurm/test_rest.py \
            tests/slurm/test_rest_look.py tests/slurm/test_rest_stories.py tests/slurm/test_asked.py tests/slurm/test_uneven.py
    else
        set -- "$@" -k 'four_whole_nodes or is_killed or exits_75 or foreign_work'
    fi
    LAB_SLURM_BIN=$next/bin run $python -m pytest "$@"
    code=$?
    tools/next-slurm.sh leave "$next"
    return $code
}

failed=''
summary=''
for leg in $legs; do
    printf '\n======== %s ========\n' "$leg"
    began=$(date +%s)
    LEG=$leg one "$leg"
    code=$?
    spent=$(($(date +%s) - began))
    case $code in
        0) word=passed ;;
        77) word='SKIPPED: it cannot be made here, for the reason above' ;;
        5) word='FAILED: it found no test' ;;
        *) word="FAILED ($code)" ;;
    esac
    [ "$code" = 0 ] || [ "$leg/$code" = slurm-next/77 ] || failed="$failed $leg"
    summary="$summary$(printf '%-9s %4d s  %s' "$leg" "$spent" "$word")
"
done
printf '\n======== legs ========\n%s' "$summary"
[ -z "$failed" ] || { echo "Failed:$failed. One leg alone: make test ONLY=${failed##* } HYPOTHESIS_SEED=$HYPOTHESIS_SEED"; exit 1; }
echo "All legs passed (HYPOTHESIS_SEED=$HYPOTHESIS_SEED)."

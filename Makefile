# Two commands: `make demo` and `make test`. The rest helps those who work on Rollcall.
PORT ?= 8000
export PORT RESET TRACE ONLY FULL ARGS
.PHONY: help demo test check bench format

help:
	@echo 'make demo             start Rollcall with a simulated cluster (PORT=8123, RESET=1, TRACE=path)'
	@echo 'make test             run every test (ONLY=unit|api|postgres|browser|faults|project|slurm|slurm-next, FULL=1, ARGS=…)'
	@echo 'make check            run the linters and type checks'
	@echo 'make bench            measure (ONLY=engine|tick|philly|api|slurm)'
	@echo 'make format           let ruff lay out the code'

demo:
	@MAKE_TARGET=demo tools/venv.sh && export ROLLCALL_MODE=demo && exec .venv/bin/python manage.py demo \
		--port "$$PORT" --trace "$$TRACE" --reset "$$RESET"

test:
	@tools/test.sh

check:
	@tools/check.sh

bench:
	@MAKE_TARGET=bench tools/venv.sh dev && tools/system.sh bench bench-$${ONLY:-slurm} && .venv/bin/python -m benchmarks $$ONLY

format:
	@.venv/bin/ruff check --fix . && .venv/bin/ruff format .

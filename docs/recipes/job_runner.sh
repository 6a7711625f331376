#!/bin/sh
# Runs a job of a tenant. At most 5 jobs of a tenant run at once, on all machines together.
#
# usage: job_runner.sh TENANT COMMAND [ARG...]
#
# SLUICE_SERVER is the address of the server. Exits with the code of the command.
if [ $# -lt 2 ]; then
  echo "usage: job_runner.sh TENANT COMMAND [ARG...]" >&2
  exit 2
fi
tenant=$1
shift
# --wait: wait in the server's slot queue for up to 10 minutes. --retry: join it again, also if
# the server was not reachable. --on-lost=term: end a job whose slot another job may have.
exec sluice run --limit jobs --key "$tenant" --wait=10m --retry --on-lost=term -- "$@"

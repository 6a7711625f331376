#!/usr/bin/env bash
# Starts a server and runs guards_soak against it: a slot for each of the guards, and a quarter
# more guards that want one.
#   guards_soak.sh BIN_FOLDER [GUARDS [SECONDS [HOLD_FOR_S]]]
set -euo pipefail
bin=$1 guards=${2:-10000} seconds=${3:-60} hold_for=${4:-6}
tries=$((guards * 5 / 4))
folder=$(mktemp -d)
server=
finish() {
  [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
  rm -rf "$folder"
}
trap finish EXIT
echo "limits: [{ name: soak, algorithm: concurrency, permits: $guards, hold_for: ${hold_for}s }]" \
  >"$folder/limits.yaml"
mkfifo "$folder/ready"
"$bin/sluiced" --limits="$folder/limits.yaml" --listen=127.0.0.1:0 --admin_listen=127.0.0.1:0 \
  --http_listen=127.0.0.1:0 \
  >"$folder/ready" 2>"$folder/log" &
server=$!
# The server prints its addresses once it listens; if it exits, the pipe ends.
read -r -t 60 _ data _ <"$folder/ready" || { cat "$folder/log" >&2; exit 1; }
echo "$guards slots of $hold_for s, $tries guards that want one, for $seconds s"
timeout $((seconds + 120)) "$bin/guards_soak" "${data#data=}" soak "$guards" "$hold_for" "$tries" \
  "$seconds"

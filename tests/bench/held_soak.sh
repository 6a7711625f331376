#!/usr/bin/env bash
# Starts a server and runs held_soak against it.
#   held_soak.sh BIN_FOLDER [CALLERS [PER_SECOND [SECONDS [MOST_LATE_MS]]]]
set -euo pipefail
bin=$1 callers=${2:-10000} rate=${3:-5000} seconds=${4:-60}
folder=$(mktemp -d)
server=
finish() {
  [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
  rm -rf "$folder"
}
trap finish EXIT
echo "limits: [{ name: soak, rate: $rate/s, burst: 1 }]" >"$folder/limits.yaml"
mkfifo "$folder/ready"
"$bin/sluiced" --limits="$folder/limits.yaml" --listen=127.0.0.1:0 --admin_listen=127.0.0.1:0 \
  --http_listen=127.0.0.1:0 \
  >"$folder/ready" 2>"$folder/log" &
server=$!
# The server prints its addresses once it listens; if it exits, the pipe ends.
read -r -t 60 _ data _ <"$folder/ready" || { cat "$folder/log" >&2; exit 1; }
echo "$callers callers wait for $rate a second, for $seconds s"
timeout $((seconds + 90)) "$bin/held_soak" "${data#data=}" soak "$callers" "$seconds" ${5:+"$5"}

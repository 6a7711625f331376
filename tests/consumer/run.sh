#!/bin/bash
# run.sh BUILD_DIR CXX: installs the client into a prefix, builds project/ against it twice, and runs
# it on a fake connection and on a real server. Builds alone/, which has the client's sources.
set -euo pipefail
build=$1
cxx=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
server_pid=
finish() {
  if [ -n "$server_pid" ]; then
    kill "$server_pid" 2>/dev/null || true
    wait "$server_pid" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap finish EXIT

cmake --install "$build" --prefix "$work/prefix" --component client >"$work/log" || {
  cat "$work/log"
  exit 1
}

echo "-- the headers need the standard library alone"
if grep -rnE '#include ["<](absl|grpc|google|server|client)' "$work/prefix/include"; then
  echo "a public header includes what a consumer does not have"
  exit 1
fi

needs_no_grpc() {
  if ldd "$1" | grep -E 'grpc|protobuf|nghttp2|upb'; then
    echo "$1 needs a library that the thin client does without"
    exit 1
  fi
  if nm -C "$1" | grep -E 'grpc::|google::protobuf|nghttp2_'; then
    echo "$1 contains a library that the thin client does without"
    exit 1
  fi
}

echo "-- with find_package(Sluice)"
cmake -G Ninja -S "$here/project" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_BUILD_TYPE=Release >"$work/log" || { cat "$work/log"; exit 1; }
cmake --build "$work/cmake" >"$work/log" || { cat "$work/log"; exit 1; }
"$work/cmake/consumer"
"$work/cmake/throttler"
"$work/cmake/guards"
"$work/cmake/admin"
needs_no_grpc "$work/cmake/consumer"

echo "-- with pkg-config"
pc=$(dirname "$(find "$work/prefix" -name sluice-client.pc)")
flags=$(PKG_CONFIG_PATH="$pc" pkg-config --cflags --libs sluice-client)
# shellcheck disable=SC2086  # flags are words
"$cxx" -std=c++20 -Wall -Wextra -Werror "$here/project/consumer.cc" -o "$work/consumer" $flags
"$work/consumer"
flags=$(PKG_CONFIG_PATH="$pc" pkg-config --cflags --libs sluice-embedded)
# shellcheck disable=SC2086
"$cxx" -std=c++20 -Wall -Wextra -Werror "$here/../../client/examples/throttler.cc" \
  -o "$work/throttler" $flags
"$work/throttler"
flags=$(PKG_CONFIG_PATH="$pc" pkg-config --cflags --libs sluice-embedded-client)
# shellcheck disable=SC2086
"$cxx" -std=c++20 -Wall -Wextra -Werror "$here/../../client/examples/guards.cc" \
  -o "$work/guards" $flags
"$work/guards"
needs_no_grpc "$work/consumer"
flags=$(PKG_CONFIG_PATH="$pc" pkg-config --cflags --libs sluice-admin)
# shellcheck disable=SC2086
"$cxx" -std=c++20 -Wall -Wextra -Werror "$here/project/admin.cc" -o "$work/admin" $flags

echo "-- alone, from its sources"
cmake -G Ninja -S "$here/alone" -B "$work/alone" -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_BUILD_TYPE=Release \
  >"$work/log" || { cat "$work/log"; exit 1; }
cmake --build "$work/alone" -j2 >"$work/log" || { cat "$work/log"; exit 1; }
"$work/alone/consumer"
needs_no_grpc "$work/alone/consumer"

if [ ! -x "$build/bin/sluiced" ]; then
  echo "-- no sluiced in $build/bin: the real server was left out"
  exit 0
fi
echo "-- on a real server"
echo 'limits: [{name: api, rate: 1/h, burst: 2}]' >"$work/limits.yaml"
mkfifo "$work/ready"
"$build/bin/sluiced" --limits="$work/limits.yaml" --listen=127.0.0.1:0 \
  --admin_listen=127.0.0.1:0 --http_listen=127.0.0.1:0 >"$work/ready" 2>"$work/server.log" &
server_pid=$!
read -r line <"$work/ready" || { cat "$work/server.log"; exit 1; }
address=$(sed -E 's/.*data=([^ ]*).*/\1/' <<<"$line")
"$work/consumer" "$address"
"$work/admin" "$(sed -E 's/.*admin=([^ ]*).*/\1/' <<<"$line")"

#!/usr/bin/env bash
# Packages a build as .deb files, and checks them with lintian.
#   package.sh BUILD OUT [VERSION]
# BUILD: a folder that was configured with the prefix /usr and built; OUT: where the files are put;
# VERSION: instead of the changelog's. The same build gives the same bytes.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SOURCE=$(cd "$here/../.." && pwd)
BUILD=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
export SOURCE BUILD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/sluice"
cp -r "$here" "$work/sluice/debian"
cd "$work/sluice"
if [ -n "${3:-}" ]; then
  sed -i "1s/(.*)/($3)/" debian/changelog
fi
# What is needed to build was needed for BUILD. The time in the archives is the changelog's.
env -u SOURCE_DATE_EPOCH dpkg-buildpackage --build=binary --no-sign --no-check-builddeps \
  >"$out/package.log" 2>&1 || { tail -n 40 "$out/package.log" >&2; exit 1; }
lintian --allow-root --fail-on error,warning "$work"/*.changes
mv "$work"/*.deb "$out/"

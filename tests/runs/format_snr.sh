#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the program format_snr: the table, the figure, one line on stderr and exit code 2 for bad input.
# Usage: format_snr.sh PROGRAM
set -euo pipefail
# shellcheck source=tests/support/program.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/program.sh" "$1"

# bad <pattern of stderr> <argument>...: expects nothing on stdout, one line on stderr and no figure
bad() {
  local pattern=$1 code=0
  shift
  "$program" "$@" > out.txt 2> err.txt || code=$?
  [[ $code == 2 ]] || fail "exit code $code instead of 2: $*"
  [[ ! -s out.txt ]] || fail "wrote to stdout: $*: $(head -n 1 out.txt)"
  [[ $(wc -l < err.txt) == 1 ]] || fail "not one line on stderr: $*: $(cat err.txt)"
  grep -qE -- "^format_snr: .*$pattern" err.txt || fail "no '$pattern' on stderr: $*: $(cat err.txt)"
  [[ ! -e bad.svg ]] || fail "a figure was begun: $*"
}
bad "unknown name 'fp7'" --formats fp7 --out bad.svg
bad 'speed' --speed --out bad.svg
bad 'none/figure.svg' --out none/figure.svg

SOURCE_DATE_EPOCH=86399 "$program" --formats e4m3,e5m2 --out figure.svg > table.txt
grep -qE '<desc>date: 1970-01-01; command: .*format_snr.* --formats e4m3,e5m2 --out figure.svg</desc>' figure.svg ||
  fail "the figure does not name date and command: $(grep desc figure.svg)"
SOURCE_DATE_EPOCH=0 "$program" --formats 'e4m3' --out 'a figure.svg' > /dev/null
grep -q -- "--out 'a figure.svg'</desc>" 'a figure.svg' || fail "the command line cannot be typed: $(grep desc a*.svg)"
grep -qE '^e4m3 +1[34][0-9][0-9] ' table.txt || fail "e4m3 at scale 1 is not near 1419: $(cat table.txt)"
grep -qE '^e5m2 +3[56][0-9]\.' table.txt || fail "e5m2 at scale 1 is not near 358: $(cat table.txt)"
[[ $(grep -cE '^e[45]m[32] ' table.txt) == 2 ]] || fail "not one row per format"
grep -qE '^e4m3 +1[0-9]+(\.[0-9])? +31\.5[0-9] ' table.txt || fail "e4m3 is not at 31.5 dB: $(cat table.txt)"
"$program" --formats mxfp8_e4m3,mxfp8_e4m3_rceil,nvfp4,fp8_tile_torchao > blocks.txt || fail "blocks: exit code $?"
for row in 'mxfp8_e4m3 .* 30\.6' 'mxfp8_e4m3_rceil .* 31\.5' 'nvfp4 .* 20\.4' 'fp8_tile_torchao .* 31\.[78]'; do
  grep -qE "^$row" blocks.txt || fail "no row '$row': $(cat blocks.txt)"
done
{ grep -q '^<svg ' figure.svg && grep -q '</svg>' figure.svg; } || fail "the figure is no SVG"
"$program" --help > help.txt || fail "--help: exit code $?"
grep -q -- '--formats' help.txt || fail "--help names no options"

((failures == 0)) || exit 1
echo "format_snr: all checks passed"

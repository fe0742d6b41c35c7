#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The lines of numpy in docs/formats.md decode files of codes, to the bits of this library. The lines are taken from the
# document. Exit code 77: no Python with numpy, so nothing is tested.
# Usage: numpy_codes.sh SOURCE_DIRECTORY PROGRAM   The program is test_io.
set -euo pipefail

python=''
for candidate in python3 /usr/bin/python3; do
  if "$candidate" -c 'import numpy' 2> /dev/null; then python=$candidate; break; fi
done
if [[ -z $python ]]; then
  echo "numpy_codes: skipped: no python3 with numpy"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
awk '/^```python/ { inside = 1; next } /^```/ { inside = 0 } inside' "$1/docs/formats.md" > "$folder/lines.py"
[[ $(wc -l < "$folder/lines.py") == 6 ]] || { echo "numpy_codes: not an import and five lines"; exit 1; }
UNITSCALE_CODES_FILE="$folder/codes.safetensors" "$2" 'codes in a file: the file for numpy' > /dev/null
"$python" - "$folder" << 'END'
import sys
import numpy as np

path = sys.argv[1] + "/codes.safetensors"
lines = compile(open(sys.argv[1] + "/lines.py").read(), "docs/formats.md", "exec")
import json
with open(path, "rb") as file:
    header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
names = [n[: -len(".expected")] for n in header if n.endswith(".expected")]
wrong = []
for name in names:
    element = header["__metadata__"].get(name + ".element", name)
    found = {"path": path, "name": name, "element": element}
    exec(lines, found)
    values, expected = found["values"], found["read"](name + ".expected", "<f4")
    nan = np.isnan(expected)
    same = values.dtype == np.float32 and values.shape == expected.shape and np.array_equal(np.isnan(values), nan)
    if not same or not np.array_equal(values[~nan].view("<u4"), expected[~nan].view("<u4")):
        wrong.append(name)
if wrong or len(names) < 20:
    sys.exit(f"numpy_codes: of {len(names)} tensors these decode to other numbers: {wrong}")
print(f"numpy_codes: all {len(names)} tensors decode to the library's bits")
END

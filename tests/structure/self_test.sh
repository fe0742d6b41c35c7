#!/usr/bin/env bash
# shellcheck disable=SC2016  # backticks are Markdown's
# SPDX-License-Identifier: MIT
# Runs one check of this directory on small trees. It must pass the good tree, and fail on every tree with a planted
# fault. A failure must name the file and the fault.   Usage: self_test.sh CHECK WORK_DIRECTORY
set -euo pipefail
check=$1 work=$2
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
spdx='// SPDX-License-Identifier: MIT'
tree=$work/tree
failed=0

header() {  # header <layer/thing.hpp> <lines>...
  mkdir -p "$tree/include/unitscale/$(dirname "$1")"
  printf '%s\n' "$spdx" '#pragma once' "${@:2}" > "$tree/include/unitscale/$1"
}
test_of() {  # test_of <layer/thing> <lines>...
  mkdir -p "$tree/tests/$(dirname "$1")"
  printf '%s\n' "$spdx" "${@:2}" > "$tree/tests/$1_test.cpp"
}
good_tree() {
  rm -rf "$tree"
  header base/error.hpp '#include <string>'
  header formats/format.hpp '#include <unitscale/base/error.hpp>'
  header tensor/backend.hpp '#include <Eigen/Core>' '#include <xtensor/xarray.hpp>' \
    '#include <unitscale/base/error.hpp>'
  header ops/add.hpp '#include <unitscale/tensor/backend.hpp>'
  header io/text.hpp '#include <unitscale/base/error.hpp>'
  header io/json.hpp '#include <nlohmann/json.hpp>' '#include <unitscale/io/text.hpp>'
  header io/npz.hpp '#include <zip.h>' '#include <unitscale/io/text.hpp>'
  header io/wordpiece.hpp '#include <unicode/uchar.h>' '#include <unitscale/io/text.hpp>'
  header io/split_pattern.hpp '#include <pcre2.h>' '#include <unitscale/io/text.hpp>'
  header io/sentencepiece.hpp '#include <sentencepiece_processor.h>' '#include <unitscale/io/text.hpp>'
  header io/atomic_file.hpp '#include <fcntl.h>' '#include <unitscale/io/text.hpp>'
  header train/loop.hpp '#include <unitscale/io/json.hpp>' '#include <unitscale/ops/add.hpp>'
  header distributed/group.hpp '#include <mpi.h>' '#include <unitscale/train/loop.hpp>'
  header report/plot.hpp '#include <nlohmann/json.hpp>' '#include <unitscale/io/atomic_file.hpp>'
  header io/page.hpp '#include <unitscale/base/error.hpp>'
  header unitscale.hpp '//   io/page.hpp: few need it' '#include <unitscale/base/error.hpp>' \
    '#include <unitscale/formats/format.hpp>' '#include <unitscale/tensor/backend.hpp>' \
    '#include <unitscale/ops/add.hpp>' '#include <unitscale/io/text.hpp>' \
    '#ifdef UNITSCALE_COMPILED  // by a target' '#include <unitscale/compiled.hpp>' '#endif'
  header compiled.hpp '#include <unitscale/ops/add.hpp>' '#define UNITSCALE_COMPILED_OPS(prefix, T) \' \
    '    prefix Variable<T> add<T>(Variable<T>);' '#define UNITSCALE_COMPILED_CLASSES(prefix, T) \' \
    '    prefix class nn::Linear<T>;'
  header train/compiled.hpp '#include <unitscale/train/loop.hpp>' '#define UNITSCALE_COMPILED_TRAIN(prefix, T) \' \
    '    prefix class Loop<T>;'
  header numerics.hpp '#include <unitscale/base/error.hpp>' '#include <unitscale/formats/format.hpp>'
  local name
  for name in base/error formats/format tensor/backend ops/add io/text io/page io/json io/npz io/wordpiece \
    io/split_pattern io/sentencepiece io/atomic_file report/plot train/loop train/compiled distributed/group; do
    test_of $name "#include <unitscale/$name.hpp>" 'TEST_CASE("a") { REQUIRE(true); }'
  done
  mkdir -p "$tree/docs" "$tree/examples"
  printf '%s\n' '```cpp' '#include <string>' 'int main() {}' '```' > "$tree/README.md"
  printf '%s\n' "$spdx" '#include <string>' 'int main() {}' > "$tree/examples/readme.cpp"
  printf '%s\n' '```cpp' 'template <class T>' 'void op();' '```' '```cpp' 'int a;' '```' \
    '```cpp' 'int rule;' '```' '```cpp' 'int b;' '```' > "$tree/docs/adding_an_op.md"
  printf '%s\n' "$spdx" 'int a;' '  int b;' 'template <class T>' 'void op();' > "$tree/examples/4_custom_op.cpp"
  printf '%s\n' "$spdx" 'int rule;' > "$tree/examples/own_scale_rule.cpp"
  printf '%s\n' '```cpp' 'int blocks;' '```' > "$tree/docs/formats.md"
  printf '%s\n' "$spdx" 'int blocks;' > "$tree/examples/1_formats.cpp"
  printf '%s\n' '```cpp' 'int load;' '```' > "$tree/docs/pretrained.md"
  printf '%s\n' "$spdx" 'int load;' > "$tree/examples/pretrained.cpp"
  printf '%s\n' '```cpp' 'int facts;' '```' '```cpp' 'int residual;' '```' '```cpp' 'int rates;' '```' \
    > "$tree/docs/umup.md"
  printf '%s\n' "$spdx" 'int facts;' 'int residual;' 'int rates;' > "$tree/examples/width_transfer.cpp"
  printf '%s\n' '```cpp' 'int batch;' '```' '```cpp' 'int model;' '```' '```cpp' 'int loop;' '```' \
    > "$tree/docs/for_pytorch_users.md"
  printf '%s\n' "$spdx" 'int model;' 'int batch;' 'int loop;' > "$tree/examples/own_loop.cpp"
  mkdir -p "$tree/examples/models"
  printf '%s\n' '```cpp' 'int project;' '```' '```cpp' 'int model;' '```' '```cpp' 'int fit;' '```' \
    '```cpp' 'int pick;' '```' > "$tree/docs/own_model.md"
  mkdir -p "$tree/tests/consumers/own_model"
  printf '%s\n' "$spdx" 'int project;' > "$tree/tests/consumers/own_model/main.cpp"
  printf '%s\n' "$spdx" 'int model;' 'int fit;' 'int pick;' > "$tree/examples/models/image_classifier.cpp"
  if [[ $check == examples ]]; then
    mkdir -p "$tree/tests/runs/examples"
    rm -r "$tree/examples"/*
    mkdir "$tree/examples/models"
    printf '%s\n' "$spdx" "// Learns." \
      "// Run: g++ -std=c++20 -O2 -Iinclude examples/models/three.cpp && ./a.out" > "$tree/examples/models/three.cpp"
    echo 3 > "$tree/tests/runs/examples/three.txt"
    for name in 1_one 2_two; do
      printf '%s\n' "$spdx" "// ${name%_*}. Adds." \
        "// Run: g++ -std=c++20 -O2 -Iinclude examples/$name.cpp && ./a.out" > "$tree/examples/$name.cpp"
      echo 2 > "$tree/tests/runs/examples/$name.txt"
    done
    echo '[one](examples/1_one.cpp), [two](examples/2_two.cpp)' > "$tree/README.md"
    echo '[one](../examples/1_one.cpp), [two](../examples/2_two.cpp)' > "$tree/docs/tour.md"
  fi
  if [[ $check == commands ]]; then
    mkdir -p "$tree/build/tests"
    printf 'add_test(%s "true")\n' ops/add ops/sub > "$tree/build/tests/CTestTestfile.cmake"
    echo 'It adds: `ctest --test-dir build/tests -R ops/add`.' > "$tree/README.md"
    echo "| sub | \`ctest --test-dir build/tests -R '^ops/sub$'\` |" > "$tree/docs/ops.md"
    echo "| mul | \`ctest --test-dir build/tests -R '^ops/(sub\|mul)$'\` |" > "$tree/docs/measured.md"
  fi
  if [[ $check == document_paths ]]; then
    mkdir -p "$tree/bench"
    touch "$tree/bench/speed.sh"
    header ops/mul.hpp '/// Product (`unitscale/ops/add.hpp`). Test: tests/ops/add_test.cpp'
    printf '%s\n' '# It adds' '' '## How fast: `bench`' '' \
      'See [ops](docs/ops.md#all-ops), [below](#it-adds), [speed](#how-fast-bench).' \
      'Each `ops/<op>.hpp` has `tests/ops/<op>_test.cpp`; `io/*.hpp` read. It is `build/tests/add`.' \
      'Check: `ctest --test-dir build/tests -R examples/adds`; [more](https://example.org/tests/none).' \
      '```' 'bash bench/speed.sh --in=[](int x)' '```' > "$tree/README.md"
    printf '%s\n' '# All ops' '[`add`](../include/unitscale/ops/add.hpp), `ops/add.hpp`, `include/unitscale/...`' \
      > "$tree/docs/ops.md"
    echo '`ops/gone.hpp` went; [ops](ops.md).' > "$tree/docs/changes.md"
  fi
  if [[ $check == op_table ]]; then
    add_op '/// Sum.' '///   y = x + z' '/// Factors under `unit`: none.'
    cp "$here"/../../docs/op_table.* "$tree/docs"
    bash "$tree/docs/op_table.sh"
    mkdir -p "$tree/tests/runs"
    echo 'void call() { ops::add(x); }' > "$tree/tests/runs/calls_test.cpp"
  fi
}
add_op() {  # add_op <lines of its doc comment>...
  header ops/add.hpp 'struct AddOptions {' '    int terms = 2;  ///< how many' '};' "$@" 'template <class T>' \
    '[[nodiscard]] Variable<T> add(Variable<T> x, const AddOptions& options = {}) {'
}
lengthen() { for ((i = 0; i < $1; ++i)); do echo '//'; done; }
run_check() { bash "$here/$check.sh" "$tree" > "$work/output" 2>&1; }
expect_fault() {  # expect_fault <text> [<text>...]: the check fails, with these texts in one line of its output
  local text lines
  if run_check; then
    printf 'self test of %s: not noticed: %s\n' "$check" "$*"
    failed=1
  fi
  lines=$(cat "$work/output")
  for text in "$@"; do lines=$(grep -F -e "$text" <<< "$lines" || true); done
  if [[ -z $lines ]]; then
    printf 'self test of %s: no line with: %s; the output is:\n' "$check" "$*"
    cat "$work/output"
    failed=1
  fi
  good_tree
}

mkdir -p "$work"
good_tree
if ! run_check; then
  printf 'self test of %s: a good tree is refused:\n' "$check"
  cat "$work/output"
  exit 1
fi

case $check in
  include_rules)
    header base/error.hpp '#include <unitscale/ops/add.hpp>'
    expect_fault include/unitscale/base/error.hpp 'layer base may not include <unitscale/ops/add.hpp>'
    header other.hpp
    expect_fault include/unitscale/other.hpp 'headers live at'
    header ops/add.hpp '#include <unitscale/numerics.hpp>'
    expect_fault include/unitscale/ops/add.hpp '<unitscale/numerics.hpp>: not at'
    header ops/add.hpp '#include <unitscale/io/text.hpp>'
    expect_fault include/unitscale/ops/add.hpp 'layer ops may not include <unitscale/io/text.hpp>'
    header ops/add.hpp '#include <unitscale/unitscale.hpp>'
    expect_fault include/unitscale/ops/add.hpp 'umbrella'
    header ops/add.hpp '#include "unitscale/base/error.hpp"'
    expect_fault include/unitscale/ops/add.hpp 'angle brackets'
    header ops/add.hpp '#include <unitscale/base/missing.hpp>'
    expect_fault include/unitscale/ops/add.hpp '<unitscale/base/missing.hpp>, which is not there'
    header ops/add.hpp '#include <unitscale/error.hpp>'
    expect_fault include/unitscale/ops/add.hpp '<unitscale/error.hpp>: not at'
    header ops/deep/add.hpp
    expect_fault include/unitscale/ops/deep/add.hpp 'headers live at'
    header shapes/add.hpp
    expect_fault include/unitscale/shapes/add.hpp 'known layer'
    header ops/add.hpp '  #  include <Eigen/Core>'
    expect_fault include/unitscale/ops/add.hpp '<Eigen/Core>: only tensor/backend.hpp may'
    header ops/add.hpp '#include <xtensor/xview.hpp>'
    expect_fault include/unitscale/ops/add.hpp '<xtensor/xview.hpp>: only tensor/backend.hpp may'
    header io/text.hpp '#include <nlohmann/json.hpp>'
    expect_fault include/unitscale/io/text.hpp '<nlohmann/json.hpp>: only'
    header io/text.hpp '#include <unitscale/io/json.hpp>'
    expect_fault include/unitscale/io/text.hpp 'needs nlohmann-json'
    header io/text.hpp '#include <zip.h>'
    expect_fault include/unitscale/io/text.hpp '<zip.h>: only'
    header io/text.hpp '#include <unitscale/io/npz.hpp>'
    expect_fault include/unitscale/io/text.hpp 'needs libzip'
    header io/text.hpp '#include <unicode/uchar.h>'
    expect_fault include/unitscale/io/text.hpp '<unicode/uchar.h>: only'
    header io/text.hpp '#include <unitscale/io/wordpiece.hpp>'
    expect_fault include/unitscale/io/text.hpp 'needs ICU'
    header io/text.hpp '#include <pcre2.h>'
    expect_fault include/unitscale/io/text.hpp '<pcre2.h>: only'
    header io/text.hpp '#include <unitscale/io/split_pattern.hpp>'
    expect_fault include/unitscale/io/text.hpp 'needs PCRE2'
    header io/text.hpp '#include <sentencepiece_processor.h>'
    expect_fault include/unitscale/io/text.hpp '<sentencepiece_processor.h>: only'
    header io/text.hpp '#include <unitscale/io/sentencepiece.hpp>'
    expect_fault include/unitscale/io/text.hpp 'needs SentencePiece'
    header train/loop.hpp '#include <mpi.h>'
    expect_fault include/unitscale/train/loop.hpp '<mpi.h>: only'
    header train/loop.hpp '#include <unitscale/distributed/group.hpp>'
    expect_fault include/unitscale/train/loop.hpp 'layer train may not include <unitscale/distributed/group.hpp>'
    header io/text.hpp '#include <fcntl.h>'
    expect_fault include/unitscale/io/text.hpp '<fcntl.h>: only'
    header ops/add.hpp '#include <unistd.h>'
    expect_fault include/unitscale/ops/add.hpp '<unistd.h>: only base and io may'
    header io/text.hpp '#include <unitscale/io/atomic_file.hpp>'
    expect_fault include/unitscale/io/text.hpp 'needs POSIX files'
    header report/plot.hpp '#include <unitscale/train/loop.hpp>'
    expect_fault include/unitscale/report/plot.hpp 'layer report may not include <unitscale/train/loop.hpp>'
    header train/loop.hpp '#include <unitscale/report/plot.hpp>'
    expect_fault include/unitscale/train/loop.hpp 'layer train may not include <unitscale/report/plot.hpp>'
    header ops/add.hpp 'inline Eigen::MatrixXf product;'
    expect_fault include/unitscale/ops/add.hpp:3 'container of Eigen'
    header ops/add.hpp '#include <omp.h>'
    expect_fault include/unitscale/ops/add.hpp '<omp.h>: only base may'
    header ops/add.hpp '#include <catch2/catch.hpp>'
    expect_fault include/unitscale/ops/add.hpp 'tests and examples only'
    ;;
  tests_mirror)
    rm "$tree/tests/ops/add_test.cpp"
    expect_fault include/unitscale/ops/add.hpp 'has no tests/ops/add_test.cpp'
    test_of ops/sub '#include <unitscale/ops/add.hpp>' 'TEST_CASE("b") { REQUIRE(true); }'
    expect_fault tests/ops/sub_test.cpp 'has no include/unitscale/ops/sub.hpp'
    test_of ops/add 'TEST_CASE("a") { REQUIRE(true); }'
    expect_fault tests/ops/add_test.cpp 'does not include <unitscale/ops/add.hpp>'
    test_of ops/add '#include <unitscale/ops/add.hpp>' 'TEST_CASE("a") {}' '// REQUIRE(true);'
    expect_fault tests/ops/add_test.cpp 'asserts nothing'
    test_of ops/add '#include <unitscale/ops/add.hpp>' 'void f() { REQUIRE(true); }'
    expect_fault tests/ops/add_test.cpp 'has no test case'
    touch "$tree/tests/ops/other.cpp"
    expect_fault tests/ops/other.cpp 'never built'
    ;;
  umbrella)
    umbrella=include/unitscale/unitscale.hpp
    rm "$tree/$umbrella"
    expect_fault $umbrella 'is not there'
    sed -i '/ops/d' "$tree/$umbrella"
    expect_fault $umbrella 'does not include ops/add.hpp'
    echo '#include <unitscale/io/json.hpp>' >> "$tree/$umbrella"
    expect_fault $umbrella 'io/json.hpp, which needs nlohmann-json'
    echo '#include <unitscale/report/plot.hpp>' >> "$tree/$umbrella"
    expect_fault $umbrella 'report/plot.hpp, which needs nlohmann-json'
    echo '#include <unitscale/io/npz.hpp>' >> "$tree/$umbrella"
    expect_fault $umbrella 'io/npz.hpp, which needs libzip'
    echo '#include <unitscale/io/wordpiece.hpp>' >> "$tree/$umbrella"
    expect_fault $umbrella 'io/wordpiece.hpp, which needs ICU'
    echo '#include <unitscale/io/split_pattern.hpp>' >> "$tree/$umbrella"
    expect_fault $umbrella 'io/split_pattern.hpp, which needs PCRE2'
    echo '#include <unitscale/io/sentencepiece.hpp>' >> "$tree/$umbrella"
    expect_fault $umbrella 'io/sentencepiece.hpp, which needs SentencePiece'
    echo '#include <unitscale/distributed/group.hpp>' >> "$tree/$umbrella"
    expect_fault $umbrella 'distributed/group.hpp, which needs MPI'
    echo '#include <unitscale/io/atomic_file.hpp>' >> "$tree/$umbrella"
    expect_fault $umbrella 'io/atomic_file.hpp, which needs POSIX files'
    echo '#include <unitscale/ops/add.hpp>' >> "$tree/$umbrella"
    expect_fault $umbrella 'ops/add.hpp twice'
    sed -i '2a//   ops/mul.hpp: few need it' "$tree/$umbrella"
    expect_fault $umbrella 'leaves out ops/mul.hpp, which is not there'
    sed -i '2a//   ops/add.hpp: few need it' "$tree/$umbrella"
    expect_fault $umbrella 'includes ops/add.hpp, which its head comment leaves out'
    sed -i '/base/d' "$tree/$umbrella"
    echo '#include <unitscale/base/error.hpp>' >> "$tree/$umbrella"
    expect_fault $umbrella 'base/error.hpp after a later layer'
    echo '#include <unitscale/ops/sub.hpp>' >> "$tree/$umbrella"
    expect_fault $umbrella 'ops/sub.hpp, which is not there'
    echo '#include <vector>' >> "$tree/$umbrella"
    expect_fault $umbrella '<vector>'
    echo '#include <unitscale/numerics.hpp>' >> "$tree/$umbrella"
    expect_fault $umbrella '<unitscale/numerics.hpp>'
    sed -i '/ifdef/d' "$tree/$umbrella"
    expect_fault $umbrella 'does not include compiled.hpp under #ifdef'
    ;;
  compiled)
    compiled=include/unitscale/compiled.hpp
    rm "$tree/$compiled"
    expect_fault $compiled 'is not there'
    header ops/add.hpp '[[nodiscard]] Variable<T> add(Variable<T> x) {' '[[nodiscard]] Variable<T> sub(Variable<T> x) {'
    expect_fault $compiled 'does not list ops::sub of include/unitscale/ops/add.hpp'
    header ops/split.hpp '[[nodiscard]] std::array<Variable<T>, 2> split(Variable<T> x) {'
    expect_fault $compiled 'does not list ops::split'
    header nn/linear.hpp 'template <class T>' 'class Linear {' 'template <class T>' 'class Norm {'
    expect_fault $compiled 'does not list nn::Norm'
    header optim/adam.hpp 'template <class T>' 'class Adam : public Optimiser<T> {'
    expect_fault $compiled 'does not list optim::Adam'
    echo '#include <unitscale/ops/missing.hpp>' >> "$tree/$compiled"
    expect_fault $compiled '<unitscale/ops/missing.hpp>, which is not there'
    echo '#include <unitscale/ops/add.hpp>' >> "$tree/$compiled"
    expect_fault $compiled '<unitscale/ops/add.hpp> twice'
    header train/loop.hpp 'template <class T>' 'class Loop {' 'template <class T, class Optimiser>' 'class Runner {'
    expect_fault include/unitscale/train/compiled.hpp 'does not list Runner of include/unitscale/train/loop.hpp'
    rm "$tree/include/unitscale/train/compiled.hpp"
    expect_fault include/unitscale/train/compiled.hpp 'is not there'
    ;;
  numerics)
    numerics=include/unitscale/numerics.hpp
    rm "$tree/$numerics"
    expect_fault $numerics 'is not there'
    sed -i '/formats/d' "$tree/$numerics"
    expect_fault $numerics 'does not include <unitscale/formats/format.hpp>'
    echo '#include <unitscale/formats/format.hpp>' >> "$tree/$numerics"
    expect_fault $numerics '<unitscale/formats/format.hpp> twice'
    echo '#include <unitscale/formats/missing.hpp>' >> "$tree/$numerics"
    expect_fault $numerics '<unitscale/formats/missing.hpp>, which is not there'
    echo '#include <unitscale/ops/add.hpp>' >> "$tree/$numerics"
    expect_fault $numerics '<unitscale/ops/add.hpp>: what numerics.hpp reaches'
    echo '#include <vector>' >> "$tree/$numerics"
    expect_fault $numerics '<vector>: only headers of ours'
    header base/error.hpp '#include <omp.h>'
    expect_fault include/unitscale/base/error.hpp '<omp.h>: what numerics.hpp reaches'
    header formats/format.hpp '#include <Eigen/Core>'
    expect_fault include/unitscale/formats/format.hpp '<Eigen/Core>: what numerics.hpp reaches'
    ;;
  op_table)
    row='| `add(x, {.terms})` | `y = x + z` | none. | `ctest --test-dir build/tests -R '"'^ops/add$'"'` |'
    grep -qF "$row" "$tree/docs/ops.md" ||
      { printf 'self test of op_table: no row of add\n' && failed=1; }
    echo 'void call() { ops::sub(x); }' > "$tree/tests/runs/calls_test.cpp"
    expect_fault tests/runs/calls_test.cpp 'does not call ops::add'
    add_op '/// Sum.' '///   y = x - z' '/// Factors under `unit`: none.'
    expect_fault '> | [`add`]' 'y = x - z'
    add_op '/// Sum.' '///   y = x + z'
    expect_fault include/unitscale/ops/add.hpp 'add: its doc comment says nothing of its factors'
    add_op
    expect_fault include/unitscale/ops/add.hpp 'add: has no doc comment'
    rm "$tree/docs/ops.md"
    expect_fault docs/ops.md
    ;;
  sources)
    echo '#pragma once' > "$tree/include/unitscale/ops/add.hpp"
    expect_fault include/unitscale/ops/add.hpp 'SPDX'
    echo > "$tree/tests/ops/add_test.cpp"
    expect_fault tests/ops/add_test.cpp 'SPDX'
    echo > "$tree/CMakeLists.txt"
    expect_fault CMakeLists.txt 'SPDX'
    echo "$spdx" > "$tree/include/unitscale/ops/add.hpp"
    expect_fault include/unitscale/ops/add.hpp 'pragma once'
    header ops/add.hpp "// $(printf '%0118d' 0)"
    expect_fault include/unitscale/ops/add.hpp:3 'longer than 120 columns'
    for script in tests/run.sh .ci/run; do
      mkdir -p "$tree/$(dirname "$script")"
      printf '%s\n' '#!/usr/bin/env bash' "#${spdx#//}" "# $(printf '%0119d' 0)" > "$tree/$script"
      expect_fault "$script:3" 'longer than 120 columns'
    done
    header ops/add.hpp 'inline const char* option() { return "--width"; }'
    expect_fault include/unitscale/ops/add.hpp:3 'names an option of a command line'
    lengthen 149 >> "$tree/include/unitscale/ops/add.hpp"
    expect_fault include/unitscale/ops/add.hpp 'at most 150'
    lengthen 399 >> "$tree/include/unitscale/io/text.hpp"
    expect_fault include/unitscale/io/text.hpp 'at most 400'
    ;;
  words)
    header ops/add.hpp '// T''ODO: subtract'
    expect_fault include/unitscale/ops/add.hpp:3 'unfinished'
    echo 'see /ho''me/ada/notes' > "$tree/README.md"
    expect_fault README.md:1 'a path of one machine'
    ;;
  snippets)
    sed -i 's/main/start/' "$tree/README.md"
    expect_fault README.md "'#include <string>', is not in examples/readme.cpp"
    sed -i 's/^```cpp/```/' "$tree/README.md"
    expect_fault README.md 'has 0 C++ blocks instead of 1'
    sed -i 's/int b/int c/' "$tree/docs/adding_an_op.md"
    expect_fault docs/adding_an_op.md "C++ block 4, which begins with 'int c;', is not in examples/4_custom_op.cpp"
    sed -i 's/rule/law/' "$tree/docs/adding_an_op.md"
    expect_fault docs/adding_an_op.md "C++ block 3, which begins with 'int law;', is not in examples/own_scale_rule.cpp"
    printf '%s\n' '```cpp' 'int a;' '```' >> "$tree/docs/adding_an_op.md"
    expect_fault docs/adding_an_op.md 'has 5 C++ blocks instead of 4'
    sed -i 's/int loop/int round/' "$tree/docs/for_pytorch_users.md"
    expect_fault docs/for_pytorch_users.md \
      "C++ block 3, which begins with 'int round;', is not in examples/own_loop.cpp"
    rm "$tree/examples/4_custom_op.cpp"
    expect_fault docs/adding_an_op.md "'template <class T>', is not in examples/4_custom_op.cpp"
    ;;
  examples)
    seq -f '// %g' 120 >> "$tree/examples/models/three.cpp"
    expect_fault examples/models/three.cpp 'has 123 lines; expected at most 120'
    sed -i 's/three.cpp &&/two.cpp \&\&/' "$tree/examples/models/three.cpp"
    expect_fault examples/models/three.cpp "has no line '// Run: g++ ... examples/models/three.cpp && ./a.out'"
    rm "$tree/tests/runs/examples/three.txt"
    expect_fault examples/models/three.cpp 'has no tests/runs/examples/three.txt'
    mv "$tree/examples/2_two.cpp" "$tree/examples/3_two.cpp"
    expect_fault examples/3_two.cpp 'is example 2 in order'
    sed -i 's/2[.] Adds/Adds/' "$tree/examples/2_two.cpp"
    expect_fault examples/2_two.cpp "does not begin with '// 2. '"
    sed -i 's/2_two/1_one/' "$tree/examples/2_two.cpp"
    expect_fault examples/2_two.cpp "has no line '// Run: g++ ... examples/2_two.cpp && ./a.out'"
    lengthen 97 >> "$tree/examples/1_one.cpp"
    expect_fault examples/1_one.cpp 'has 100 lines'
    echo '[two](examples/2_two.cpp), [one](examples/1_one.cpp)' > "$tree/README.md"
    expect_fault README.md \
      'links to the examples examples/2_two.cpp examples/1_one.cpp instead of examples/1_one.cpp examples/2_two.cpp'
    echo '[one](../examples/1_one.cpp)' > "$tree/docs/tour.md"
    expect_fault docs/tour.md 'links to the examples examples/1_one.cpp instead of'
    rm "$tree/tests/runs/examples/2_two.txt"
    expect_fault examples/2_two.cpp 'has no tests/runs/examples/2_two.txt'
    echo '#include <CLI/CLI.hpp>' > "$tree/examples/train.cpp"
    expect_fault examples/train.cpp 'has options, but no tests/runs/train.sh'
    touch "$tree/tests/runs/examples/3_three.txt"
    expect_fault tests/runs/examples/3_three.txt 'has no example'
    ;;
  commands)
    sed -i 's/add`/mul`/' "$tree/README.md"
    expect_fault README.md "no test for 'ctest --test-dir build/tests -R ops/mul'"
    sed -i 's@ops/sub@ops/su@' "$tree/docs/ops.md"
    expect_fault docs/ops.md "no test for 'ctest --test-dir build/tests -R '^ops/su$''"
    sed -i 's@sub@su@' "$tree/docs/measured.md"
    expect_fault docs/measured.md "no test for 'ctest --test-dir build/tests -R '^ops/(su\|mul)$''"
    rm "$tree/README.md" "$tree/docs/ops.md" "$tree/docs/measured.md"
    expect_fault 'the documents' 'no command'
    ;;
  document_paths)
    sed -i 's@docs/ops.md@docs/op.md@' "$tree/README.md"
    expect_fault README.md:5 'links to docs/op.md, which is not there'
    sed -i 's@#all-ops@#all@' "$tree/README.md"
    expect_fault README.md:5 'links to docs/ops.md#all, a heading that is not there'
    sed -i 's@(#it-adds)@(#it-subtracts)@' "$tree/README.md"
    expect_fault README.md:5 'links to #it-subtracts, a heading that is not there'
    sed -i 's@tests/ops/<op>@tests/op/<op>@' "$tree/README.md"
    expect_fault README.md:6 'names tests/op/, which is not there'
    rm "$tree"/include/unitscale/io/*
    expect_fault README.md:6 'names io/*.hpp, which is not there'
    sed -i 's@bench/speed@bench/speeds@' "$tree/README.md"
    expect_fault README.md:9 'names bench/speeds.sh, which is not there'
    sed -i 's@, `ops/add@, `ops/sub@' "$tree/docs/ops.md"
    expect_fault docs/ops.md:2 'names ops/sub.hpp, which is not there'
    sed -i 's@(../include@(include@' "$tree/docs/ops.md"
    expect_fault docs/ops.md:2 'links to include/unitscale/ops/add.hpp, which is not there'
    sed -i 's@(ops.md@(op.md@' "$tree/docs/changes.md"
    expect_fault docs/changes.md:1 'links to op.md, which is not there'
    sed -i 's@ tests/ops/add_test@ tests/ops/mul_test@' "$tree/include/unitscale/ops/mul.hpp"
    expect_fault include/unitscale/ops/mul.hpp:3 'names tests/ops/mul_test.cpp, which is not there'
    sed -i 's@unitscale/ops/add.hpp`@unitscale/ops/adds.hpp`@' "$tree/include/unitscale/ops/mul.hpp"
    expect_fault include/unitscale/ops/mul.hpp:3 'names unitscale/ops/adds.hpp, which is not there'
    echo '#include "experiments/run.hpp" // experiments/search.hpp' > "$tree/examples/search.cpp"
    expect_fault examples/search.cpp:1 'names experiments/search.hpp, which is not there'
    ;;
  *)
    printf 'self_test.sh: no self test of %s\n' "$check"
    exit 1
    ;;
esac

((failed == 0)) && printf 'self test of %s: good\n' "$check"
exit $failed

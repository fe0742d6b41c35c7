# SPDX-License-Identifier: MIT
# Configures, builds and runs the project tests/consumers/<kind> and checks its output.
# pkg_config: no project; the compiler is called with the flags that pkg-config prints.
# conan_sources: find_package after an installation from the files that conanfile.py exports, as in its package().
# Conan itself is not run.
# blas and blas_reference: find_package of a package that was configured with UNITSCALE_BLAS, for the BLAS that is found
# and for ${blas}.
# own_model: the project of docs/own_model.md.
# compiled_<way>: links unitscale::compiled. The package's way also compares the results with the headers alone, to the
# bit.
cmake_minimum_required(VERSION 3.25)

set(expected "0.3125 448 -16 2")  # nearest even; 1000 saturates; -17 is a tie of -16 and -18
function(run_consumer program)
  execute_process(COMMAND "${program}" OUTPUT_VARIABLE output OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  if(NOT output STREQUAL expected)
    message(FATAL_ERROR "${kind}: the consumer printed '${output}' instead of '${expected}'")
  endif()
endfunction()

file(REMOVE_RECURSE "${work}")
set(arguments "")
set(package_source "")
set(package_arguments "")
set(project ${kind})
set(consumer main)
set(target unitscale)
if(kind MATCHES "^compiled_(.*)")
  set(project ${CMAKE_MATCH_1})
  set(consumer train)
  set(target compiled)
  if(project STREQUAL "find_package")
    set(package_source "${source}")
    list(APPEND package_arguments -DUNITSCALE_COMPILED=ON -DUNITSCALE_COMPILED_TYPES=float -DCMAKE_BUILD_TYPE=None)
  else()
    list(APPEND arguments -DUNITSCALE_COMPILED_TYPES=float)
  endif()
elseif(kind STREQUAL "conan_sources")
  set(project find_package)
  file(STRINGS "${source}/conanfile.py" exported REGEX "^ *exports_sources = ")
  string(REGEX MATCHALL "\"[^\"]+\"" exported "${exported}")
  if(NOT exported)
    message(FATAL_ERROR "conan_sources: conanfile.py has no line 'exports_sources = '")
  endif()
  foreach(path IN LISTS exported)
    string(REGEX REPLACE "\"|/\\*" "" path "${path}")
    file(COPY "${source}/${path}" DESTINATION "${work}/exported")
  endforeach()
  set(package_source "${work}/exported")
elseif(kind MATCHES "^blas")
  set(project blas)
  set(expected "good")
  set(package_source "${source}")
  list(APPEND package_arguments -DUNITSCALE_BLAS=ON)
  if(kind STREQUAL "blas_reference")
    list(APPEND package_arguments "-DBLAS_LIBRARIES=${blas}")
    list(APPEND arguments "-DBLAS_LIBRARIES=${blas}")
  endif()
endif()
if(package_source)
  set(build "${work}/package")
  execute_process(COMMAND "${CMAKE_COMMAND}" -S "${package_source}" -B "${build}" -G "${generator}"
                          "-DCMAKE_CXX_COMPILER=${compiler}" "-DCMAKE_PREFIX_PATH=${prefix_path}" "-DUNITSCALE_OPENMP=${openmp}"
                          -DUNITSCALE_TESTS=OFF -DUNITSCALE_EXAMPLES=OFF -DUNITSCALE_BENCH=OFF -DUNITSCALE_NATIVE=OFF
                          ${package_arguments}
                  COMMAND_ERROR_IS_FATAL ANY)
  if(target STREQUAL "compiled")
    execute_process(COMMAND "${CMAKE_COMMAND}" --build "${build}" COMMAND_ERROR_IS_FATAL ANY)
  endif()
endif()
if(package_source OR kind MATCHES "find_package|pkg_config|own_model")
  execute_process(COMMAND "${CMAKE_COMMAND}" --install "${build}" --prefix "${work}/installed" OUTPUT_QUIET
                  COMMAND_ERROR_IS_FATAL ANY)
endif()

if(kind STREQUAL "pkg_config")
  file(GLOB_RECURSE pc_file "${work}/installed/*/unitscale.pc")
  cmake_path(GET pc_file PARENT_PATH pc_dir)
  set(ENV{PKG_CONFIG_PATH} "${pc_dir}:$ENV{PKG_CONFIG_PATH}")
  foreach(question IN ITEMS --modversion --cflags --libs)
    execute_process(COMMAND "${pkg_config}" ${question} unitscale OUTPUT_VARIABLE answer${question}
                    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    separate_arguments(flags${question} UNIX_COMMAND "${answer${question}}")
  endforeach()
  if(NOT answer--modversion STREQUAL version)
    message(FATAL_ERROR "pkg_config: the version is '${answer--modversion}' instead of '${version}'")
  endif()
  if(answer--cflags MATCHES "(^| )-(march|W|fsanitize)")
    message(FATAL_ERROR "pkg_config: our development flags reach the consumer: ${answer--cflags}")
  endif()
  execute_process(COMMAND "${compiler}" -std=c++20 ${flags--cflags} "${source}/tests/consumers/main.cpp" -o "${work}/consumer"
                          ${flags--libs}
                  COMMAND_ERROR_IS_FATAL ANY)
  run_consumer("${work}/consumer")
  return()
endif()

if(project MATCHES "find_package|blas|own_model")
  list(PREPEND prefix_path "${work}/installed")
  list(APPEND arguments "-DUNITSCALE_VERSION=${version}")
elseif(project STREQUAL "add_subdirectory")
  list(APPEND arguments "-DUNITSCALE_SOURCE=${source}" "-DUNITSCALE_OPENMP=${openmp}")
else()
  list(APPEND arguments "-DFETCHCONTENT_SOURCE_DIR_UNITSCALE=${source}" -DFETCHCONTENT_FULLY_DISCONNECTED=ON
       "-DUNITSCALE_OPENMP=${openmp}")
endif()

set(flags "-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion")
if(strict)
  string(APPEND flags " -Werror")
endif()
execute_process(
  COMMAND "${CMAKE_COMMAND}" -S "${source}/tests/consumers/${project}" -B "${work}/build" -G "${generator}"
          "-DCMAKE_CXX_COMPILER=${compiler}" "-DCMAKE_CXX_FLAGS=${flags}" "-DCMAKE_PREFIX_PATH=${prefix_path}"
          -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DUNITSCALE_CONSUMER=${consumer} -DUNITSCALE_TARGET=${target} ${arguments}
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${work}/build" COMMAND_ERROR_IS_FATAL ANY)
if(kind STREQUAL "compiled_find_package")
  execute_process(COMMAND "${work}/build/consumer_of_headers" OUTPUT_VARIABLE expected OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
  if(NOT expected MATCHES "^loss 0x")
    message(FATAL_ERROR "${kind}: the consumer of the headers printed '${expected}' instead of a loss")
  endif()
  run_consumer("${work}/build/consumer")
elseif(kind STREQUAL "own_model")
  execute_process(COMMAND "${work}/build/consumer" WORKING_DIRECTORY "${work}" OUTPUT_VARIABLE output
                  COMMAND_ERROR_IS_FATAL ANY)
  if(NOT output MATCHES "^loss 0[.]0[0-9]+, and resumed to the bit")
    message(FATAL_ERROR "${kind}: the consumer printed '${output}' instead of a loss below 0.1")
  endif()
  foreach(file IN ITEMS scales.html run.safetensors)
    if(NOT EXISTS "${work}/${file}")
      message(FATAL_ERROR "${kind}: the consumer did not write ${file}")
    endif()
  endforeach()
elseif(target STREQUAL "compiled")
  execute_process(COMMAND "${work}/build/consumer" OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  if(NOT output MATCHES "^loss 0x")
    message(FATAL_ERROR "${kind}: the consumer printed '${output}' instead of a loss")
  endif()
else()
  run_consumer("${work}/build/consumer")
endif()

# Only the consumer's own file is compiled, without our development flags.
# The build also knows the sources of the compiled library, and compiles them where the library is linked.
file(READ "${work}/build/compile_commands.json" commands)
string(JSON length LENGTH "${commands}")
math(EXPR last "${length} - 1")
set(count 0)
foreach(i RANGE ${last})
  string(JSON file GET "${commands}" ${i} file)
  if(NOT file MATCHES "/compiled/[A-Za-z0-9_/]+\\.cpp$")
    math(EXPR count "${count} + 1")
  endif()
endforeach()
set(expected_count 1)
if(kind STREQUAL "compiled_find_package")
  set(expected_count 2)  # the second is for the headers alone
endif()
if(NOT count EQUAL expected_count)
  message(FATAL_ERROR "${kind}: ${count} files are compiled instead of ${expected_count}")
endif()
if(commands MATCHES "-march|-Wshadow|-fsanitize")
  message(FATAL_ERROR "${kind}: our development flags reach the consumer: ${commands}")
endif()

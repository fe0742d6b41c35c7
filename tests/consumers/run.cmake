# SPDX-License-Identifier: MIT
# Configures, builds and runs the project tests/consumers/<kind> and checks what it prints.
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE "${work}")
set(arguments "")
if(kind STREQUAL "find_package")
  execute_process(COMMAND "${CMAKE_COMMAND}" --install "${build}" --prefix "${work}/installed" OUTPUT_QUIET
                  COMMAND_ERROR_IS_FATAL ANY)
  list(PREPEND prefix_path "${work}/installed")
  list(APPEND arguments "-DUNITSCALE_VERSION=${version}")
elseif(kind STREQUAL "add_subdirectory")
  list(APPEND arguments "-DUNITSCALE_SOURCE=${source}" "-DUNITSCALE_OPENMP=${openmp}")
else()
  list(APPEND arguments "-DFETCHCONTENT_SOURCE_DIR_UNITSCALE=${source}" -DFETCHCONTENT_FULLY_DISCONNECTED=ON
       "-DUNITSCALE_OPENMP=${openmp}")
endif()

set(flags "-Wall -Wextra -Wpedantic -Wconversion")
if(strict)
  string(APPEND flags " -Werror")
endif()
execute_process(
  COMMAND "${CMAKE_COMMAND}" -S "${source}/tests/consumers/${kind}" -B "${work}/build" -G "${generator}"
          "-DCMAKE_CXX_COMPILER=${compiler}" "-DCMAKE_CXX_FLAGS=${flags}" "-DCMAKE_PREFIX_PATH=${prefix_path}"
          -DCMAKE_EXPORT_COMPILE_COMMANDS=ON ${arguments}
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${work}/build" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${work}/build/consumer" OUTPUT_VARIABLE output OUTPUT_STRIP_TRAILING_WHITESPACE
                COMMAND_ERROR_IS_FATAL ANY)

set(expected "0.3125 448 -16 2")  # nearest even; 1000 saturates; -17 is a tie of -16 and -18
if(NOT output STREQUAL expected)
  message(FATAL_ERROR "${kind}: the consumer printed '${output}' instead of '${expected}'")
endif()

# Only the consumer's own file is compiled, and not with our development flags.
file(READ "${work}/build/compile_commands.json" commands)
string(JSON count LENGTH "${commands}")
if(NOT count EQUAL 1)
  message(FATAL_ERROR "${kind}: ${count} files are compiled instead of the consumer's one")
endif()
if(commands MATCHES "-march|-Wshadow|-fsanitize")
  message(FATAL_ERROR "${kind}: our development flags reach the consumer: ${commands}")
endif()

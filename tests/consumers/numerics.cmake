# SPDX-License-Identifier: MIT
# The single file of unitscale/numerics.hpp, with a program pasted below it, compiles with the standard library alone.
# It prints the output of the program that is built with the library.
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE "${work}")
set(single "${work}/numerics_single.hpp")
execute_process(COMMAND "${CMAKE_COMMAND}" -D "include=${source}/include" -D header=unitscale/numerics.hpp -D "output=${single}"
                        -P "${source}/cmake/amalgamate.cmake"
                COMMAND_ERROR_IS_FATAL ANY)
file(READ "${single}" text)
file(READ "${source}/tests/consumers/numerics.cpp" program)
string(REPLACE "#include <unitscale/numerics.hpp>\n" "" pasted "${program}")
if(pasted STREQUAL program OR "${text}${pasted}" MATCHES "\n#include <(unitscale|Eigen|xtensor|nlohmann)/|\n#include \"")
  message(FATAL_ERROR "an include is left that is not the standard library's: ${CMAKE_MATCH_0}")
endif()
file(WRITE "${work}/pasted.cpp" "${text}\n${pasted}")
file(WRITE "${work}/library.cpp" "${program}")

set(flags -std=c++20 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion)
if(strict)
  list(APPEND flags -Werror)
endif()
foreach(kind IN ITEMS pasted library)
  set(where -O1)  # GCC's warnings depend on the level
  if(kind STREQUAL "library")
    set(where -O2 "-I${source}/include")
  endif()
  execute_process(COMMAND "${compiler}" ${flags} ${where} "${work}/${kind}.cpp" -o "${work}/${kind}" COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${work}/${kind}" OUTPUT_VARIABLE output_${kind} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
string(REGEX MATCHALL "\n" lines "${output_library}")
list(LENGTH lines count)
if(NOT output_pasted STREQUAL output_library OR NOT count EQUAL 11)
  message(FATAL_ERROR "the single file gives\n${output_pasted}\nthe library\n${output_library}")
endif()

# The single file also works as an included header, once or twice.
file(WRITE "${work}/header.cpp" "#include \"numerics_single.hpp\"\n#include \"numerics_single.hpp\"\n")
execute_process(COMMAND "${compiler}" ${flags} -fsyntax-only "${work}/header.cpp" COMMAND_ERROR_IS_FATAL ANY)

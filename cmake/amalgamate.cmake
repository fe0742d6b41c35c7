# SPDX-License-Identifier: MIT
# Writes one of our headers, with all of our headers that it includes, as one file.
# Usage: cmake -D include=DIRECTORY -D header=unitscale/NAME.hpp -D output=FILE -P amalgamate.cmake
cmake_minimum_required(VERSION 3.25)

# Appends the header to `text`. The first include of each of our headers is replaced by that header, later ones by
# nothing.
function(inline_header name)
  get_property(seen GLOBAL PROPERTY inlined)
  if(name IN_LIST seen)
    return()
  endif()
  set_property(GLOBAL APPEND PROPERTY inlined "${name}")
  file(READ "${include}/${name}" rest)
  string(REGEX REPLACE "^// SPDX[^\n]*\n" "" rest "${rest}")
  string(REPLACE "\n#pragma once\n" "\n" rest "\n${rest}")
  set_property(GLOBAL APPEND_STRING PROPERTY text "\n// ==== ${name}\n")
  while(rest MATCHES "\n#include <(unitscale/[a-z0-9_/]+\\.hpp)>[^\n]*")
    set(line "${CMAKE_MATCH_0}")
    set(included "${CMAKE_MATCH_1}")
    string(FIND "${rest}" "${line}" begin)
    string(LENGTH "${line}" length)
    math(EXPR end "${begin} + ${length}")
    string(SUBSTRING "${rest}" 0 ${begin} before)
    string(SUBSTRING "${rest}" ${end} -1 rest)
    set_property(GLOBAL APPEND_STRING PROPERTY text "${before}")
    inline_header("${included}")
  endwhile()
  set_property(GLOBAL APPEND_STRING PROPERTY text "${rest}")
endfunction()

inline_header("${header}")
get_property(text GLOBAL PROPERTY text)
string(REGEX REPLACE "\n\n\n+" "\n\n" text "${text}")
string(REGEX REPLACE "[^A-Za-z0-9]+" "_" guard "${header}")
string(TOUPPER "${guard}_SINGLE" guard)
# A guard instead of #pragma once, because compilers warn of #pragma once in a main file, where the text may be pasted.
file(WRITE "${output}" "// SPDX-License-Identifier: MIT\n// ${header} of unitscale as one file, made by cmake/amalgamate.cmake.\n"
     "#ifndef ${guard}\n#define ${guard}\n${text}\n#endif  // ${guard}\n")

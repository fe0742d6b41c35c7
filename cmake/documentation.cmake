# SPDX-License-Identifier: MIT
# The target `doxygen`: a site of the doc comments and docs/, in doxygen/html of the build directory.
# The target exists only if Doxygen is found.
find_package(Doxygen QUIET)
if(DOXYGEN_FOUND)
  set(doxygen_warnings NO)
  if(UNITSCALE_WARNINGS_AS_ERRORS)
    set(doxygen_warnings FAIL_ON_WARNINGS)
  endif()
  configure_file(docs/Doxyfile.in "${PROJECT_BINARY_DIR}/Doxyfile" @ONLY)
  add_custom_target(doxygen COMMAND Doxygen::doxygen "${PROJECT_BINARY_DIR}/Doxyfile" VERBATIM)
endif()

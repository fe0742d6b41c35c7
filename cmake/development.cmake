# SPDX-License-Identifier: MIT
# The build settings of our own programs (tests, examples, benchmarks). Nothing here reaches users of the library.

# Compilers use half of AVX-512's width by default. Its full width makes a training step a seventh faster.
include(CheckCXXCompilerFlag)
check_cxx_compiler_flag(-mprefer-vector-width=512 UNITSCALE_HAS_PREFER_VECTOR_WIDTH)
set(UNITSCALE_WIDE_VECTORS $<$<BOOL:${UNITSCALE_HAS_PREFER_VECTOR_WIDTH}>:-mprefer-vector-width=512>)

# Release means -O3, which compiles half as long again as -O2. Our loops need only its vectoriser.
set(UNITSCALE_FAST_BUILD $<$<CONFIG:Release>:-O2>)
check_cxx_compiler_flag("-O2 -fvect-cost-model=dynamic" UNITSCALE_HAS_VECT_COST_MODEL)
if(UNITSCALE_HAS_VECT_COST_MODEL)
  list(APPEND UNITSCALE_FAST_BUILD $<$<CONFIG:Release>:-fvect-cost-model=dynamic>)
endif()

# Code with little arithmetic: -O1 builds in half the time of -O2, and under sanitizers -O0 in half the time of -O1.
# Plain is for tests whose loops are in unitscale_compiled: -O0 builds in two thirds of the time of -O1.
set(UNITSCALE_LIGHT_BUILD $<$<CONFIG:Release>:-O1>)
set(UNITSCALE_PLAIN_BUILD -O0)
if(UNITSCALE_SANITIZE)
  set(UNITSCALE_LIGHT_BUILD -O0)
endif()

# Sources are compiled several to a unit: they share includes and instantiations, the largest cost of a small file.
# UNITSCALE_UNIT_LINES is the largest number of lines of a unit of tests. Units of 2000 lines take two thirds of the
# time of units of 800, and up to 2 GB of memory.
set(UNITSCALE_UNIT_LINES 2000 CACHE STRING
    "Lines of tests that are compiled together; 0: every file of the tests and of examples/experiments alone")

# GCC collects garbage whenever its memory has doubled. It starts at 1 GB here: most units never get there.
set(UNITSCALE_LATE_COLLECTION $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1000000>)

# Seconds after which a test has failed. Whole training runs take ten minutes under sanitizers.
set(UNITSCALE_TEST_TIMEOUT 600)
if(UNITSCALE_SANITIZE)
  set(UNITSCALE_TEST_TIMEOUT 2400)
endif()
if(CMAKE_CROSSCOMPILING)
  set(UNITSCALE_TEST_TIMEOUT 14400)  # an emulated processor is slow
endif()

# Sanitizers' checks of addresses are calls rather than code in place: a build takes two thirds of the time.
set(UNITSCALE_SANITIZER_CALLS
    $<$<CXX_COMPILER_ID:GNU>:--param=asan-instrumentation-with-call-threshold=0>
    $<$<CXX_COMPILER_ID:Clang>:SHELL:-mllvm\ -asan-instrumentation-with-call-threshold=0>)

# unitscale_program(<target> [NO_NATIVE]): links the library and adds warnings, sanitizers and -march=native.
function(unitscale_program target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_NATIVE" "" "")
  target_link_libraries(${target} PRIVATE unitscale::unitscale)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion
                                           ${UNITSCALE_LATE_COLLECTION})
  if(UNITSCALE_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(UNITSCALE_NATIVE AND NOT arg_NO_NATIVE)
    target_compile_options(${target} PRIVATE -march=native ${UNITSCALE_WIDE_VECTORS})
  endif()
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  if(UNITSCALE_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${UNITSCALE_SANITIZE} -fno-sanitize-recover=all
                                             -fno-omit-frame-pointer ${UNITSCALE_SANITIZER_CALLS})
    # Sanitizers keep optimisers from their usual analysis. GCC then warns of uninitialised variables where there are
    # none, and Clang of loops that it does not vectorise.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
                                             $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed>)
    target_link_options(${target} PRIVATE -fsanitize=${UNITSCALE_SANITIZE})
  endif()
endfunction()

# unitscale_program_path(<out> <target>): what scripts call to run the program. With a cross compiler it is a script of
# the program's name in the folder `emulated`, which runs the program in the emulator. The process has the script's name,
# by which tests find it. qemu's option -0 tells the program, too: programs that start themselves once more need it.
function(unitscale_program_path out target)
  set(path "$<TARGET_FILE:${target}>")
  if(CMAKE_CROSSCOMPILING AND CMAKE_CROSSCOMPILING_EMULATOR)
    list(JOIN CMAKE_CROSSCOMPILING_EMULATOR "' '" emulator)
    set(script "${PROJECT_BINARY_DIR}/emulated/${target}")
    get_property(made GLOBAL PROPERTY unitscale_emulated)
    if(NOT target IN_LIST made)
      set_property(GLOBAL APPEND PROPERTY unitscale_emulated ${target})
      set(name "")
      if(CMAKE_CROSSCOMPILING_EMULATOR MATCHES "qemu")
        set(name " -0 \"$0\"")
      endif()
      file(GENERATE OUTPUT "${script}"
           CONTENT "#!/usr/bin/env bash\nexec -a \"$0\" '${emulator}'${name} '${path}' \"$@\"\n"
           FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
    endif()
    set(path "${script}")
  endif()
  set(${out} "${path}" PARENT_SCOPE)
endfunction()

# Uses ccache if it is installed and the user chose no launcher. It caches precompiled headers only if it may ignore the
# time stamps in them, and if the compilers write them reproducibly.
find_program(UNITSCALE_CCACHE ccache)
if(PROJECT_IS_TOP_LEVEL AND UNITSCALE_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(sloppiness pch_defines,time_macros,include_file_mtime,include_file_ctime)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=${sloppiness};${UNITSCALE_CCACHE}")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fpch-preprocess)
  elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    add_compile_options("SHELL:-Xclang -fno-pch-timestamp")
  endif()
endif()

# The compiled library has the warnings and the instruction set of our programs, unless it is to be installed.
if(NOT UNITSCALE_COMPILED)
  unitscale_program(unitscale_compiled)
  target_compile_options(unitscale_compiled PRIVATE ${UNITSCALE_FAST_BUILD})
endif()

# unitscale_link_compiled(<target>): links unitscale::compiled, and puts it before the target's own objects.
# Of several copies of an inline function or a template, linkers keep the first. So the loops that a program runs are
# optimised, however lightly its own sources are compiled.
function(unitscale_link_compiled target)
  target_link_libraries(${target} PRIVATE unitscale::compiled)
  if(NOT APPLE AND NOT WIN32)
    target_link_options(${target} PRIVATE
                        "LINKER:--whole-archive,$<TARGET_FILE:unitscale_compiled>,--no-whole-archive")
  endif()
endfunction()

# The precompiled header of programs that use ops: the library, most of the time in which a small program compiles.
# No line of an example asks for it, so that the examples can be copied.
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/precompiled.cpp"
     CONTENT "// has a precompiled header, for other targets\n")
add_library(unitscale_precompiled OBJECT EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/precompiled.cpp")
unitscale_program(unitscale_precompiled)
target_link_libraries(unitscale_precompiled PRIVATE unitscale::compiled)
target_compile_options(unitscale_precompiled PRIVATE ${UNITSCALE_LIGHT_BUILD})
target_precompile_headers(unitscale_precompiled PRIVATE <unitscale/compiled.hpp>)
# unitscale_use_ops(<target>): the compiled ops and their precompiled header, for a target of light optimisation.
function(unitscale_use_ops target)
  target_compile_options(${target} PRIVATE ${UNITSCALE_LIGHT_BUILD})
  target_precompile_headers(${target} REUSE_FROM unitscale_precompiled)
  unitscale_link_compiled(${target})
endfunction()

# ICU and PCRE2 serve the headers of tokenisers: the target ICU::uc is there where ICU is found, and unitscale_pcre2 and
# unitscale_sentencepiece where these libraries are.
find_package(ICU COMPONENTS uc QUIET)
function(unitscale_find_library target header library)
  string(TOUPPER ${target} name)
  find_path(${name}_INCLUDE ${header})
  find_library(${name}_LIBRARY ${library})
  if(${name}_INCLUDE AND ${name}_LIBRARY)
    add_library(${target} INTERFACE IMPORTED GLOBAL)
    target_include_directories(${target} INTERFACE "${${name}_INCLUDE}")
    target_link_libraries(${target} INTERFACE "${${name}_LIBRARY}")
  endif()
endfunction()
unitscale_find_library(unitscale_pcre2 pcre2.h pcre2-8)
unitscale_find_library(unitscale_sentencepiece sentencepiece_processor.h sentencepiece)

# MPI serves one layer, `distributed`, and the option --distributed of programs: MPI::MPI_CXX is there where MPI is.
# MPIEXEC_EXECUTABLE starts processes. The environment lets root start them, and more than there are processors. In
# containers there is no remote shell, and processes may not read each other's memory.
find_package(MPI COMPONENTS CXX QUIET)
set(UNITSCALE_MPI_ENVIRONMENT OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
    OMPI_MCA_plm_rsh_agent=false OMPI_MCA_btl_vader_single_copy_mechanism=none)

# The engine of the programs with options: examples/experiments. It needs nlohmann-json.
find_package(nlohmann_json QUIET)
if(nlohmann_json_FOUND)
  file(GLOB experiments CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/examples/experiments/*.cpp")
  add_library(unitscale_experiments STATIC EXCLUDE_FROM_ALL ${experiments})
  unitscale_program(unitscale_experiments)
  # Its sources share a namespace: CMake can join them as they are. They make three units, for their memory's sake.
  if(NOT UNITSCALE_UNIT_LINES EQUAL 0)
    set_target_properties(unitscale_experiments PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 11)
  endif()
  unitscale_use_ops(unitscale_experiments)
  target_include_directories(unitscale_experiments PUBLIC "${PROJECT_SOURCE_DIR}/examples")
  target_link_libraries(unitscale_experiments PUBLIC unitscale::compiled nlohmann_json::nlohmann_json)
  # Tokenisers need more; without it `--tokens` knows characters and bytes alone.
  if(TARGET ICU::uc AND TARGET unitscale_pcre2)
    target_compile_definitions(unitscale_experiments PRIVATE UNITSCALE_HAS_JSON_TOKENISER)
    target_link_libraries(unitscale_experiments PRIVATE ICU::uc unitscale_pcre2)
  endif()
  if(TARGET unitscale_sentencepiece)
    target_compile_definitions(unitscale_experiments PRIVATE UNITSCALE_HAS_SENTENCEPIECE)
    target_link_libraries(unitscale_experiments PRIVATE unitscale_sentencepiece)
  endif()
endif()

# SPDX-License-Identifier: MIT
# Toolchain file: builds for 64-bit ARM Linux by Debian's cross compiler, and runs programs in qemu.
#   cmake --preset release -B build/aarch64 --toolchain cmake/aarch64-linux-gnu.cmake
# UNITSCALE_AARCH64_ROOT: a folder with ARM's libraries below usr/lib/aarch64-linux-gnu, where ICU, PCRE2,
# SentencePiece, libzip and Open MPI are looked for. The default is the compiler's own folder, which has none of them.
# Header-only libraries are taken from this machine, and so is mpirun: it starts emulators.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

set(UNITSCALE_AARCH64_ROOT /usr/aarch64-linux-gnu CACHE PATH "Folder with the libraries of ARM programs")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES UNITSCALE_AARCH64_ROOT)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L "${UNITSCALE_AARCH64_ROOT}")
set(CMAKE_CXX_FLAGS_INIT -Wno-psabi)  # GCC's notes about older versions of GCC
# Libraries that a library needs are found where it was found.
set(libraries "${UNITSCALE_AARCH64_ROOT}/usr/lib/aarch64-linux-gnu:${UNITSCALE_AARCH64_ROOT}/lib/aarch64-linux-gnu")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-rpath-link,${libraries}")
set(CMAKE_SKIP_RPATH ON)  # qemu finds all libraries below the folder

# The compiler wrapper of Open MPI would name this machine's library.
set(open_mpi "${UNITSCALE_AARCH64_ROOT}/usr/lib/aarch64-linux-gnu/openmpi")
if(EXISTS "${open_mpi}/include/mpi.h")
  set(MPI_CXX_INCLUDE_PATH "${open_mpi}/include")
  set(MPI_CXX_LIB_NAMES mpi)
  set(MPI_mpi_LIBRARY "${open_mpi}/lib/libmpi.so")
  set(MPI_CXX_SKIP_MPICXX ON)  # the library of its C++ interface
endif()

set(CMAKE_FIND_ROOT_PATH "${UNITSCALE_AARCH64_ROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)

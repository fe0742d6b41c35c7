# SPDX-License-Identifier: MIT
# Installs the headers, a package for find_package(unitscale), and unitscale.pc for pkg-config.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(unitscale_package_dir "${CMAKE_INSTALL_DATADIR}/cmake/unitscale")
install(TARGETS unitscale EXPORT unitscale-targets FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT unitscale-targets NAMESPACE unitscale:: DESTINATION "${unitscale_package_dir}")

configure_package_config_file(cmake/unitscale-config.cmake.in "${PROJECT_BINARY_DIR}/unitscale-config.cmake"
                              INSTALL_DESTINATION "${unitscale_package_dir}")
# A package of headers alone works for every processor. Before version 1.0 a minor version may break code.
set(unitscale_independent ARCH_INDEPENDENT)
if(UNITSCALE_COMPILED)
  set(unitscale_independent "")
  install(TARGETS unitscale_compiled EXPORT unitscale-compiled-targets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(EXPORT unitscale-compiled-targets NAMESPACE unitscale:: DESTINATION "${unitscale_package_dir}")
endif()
write_basic_package_version_file("${PROJECT_BINARY_DIR}/unitscale-config-version.cmake"
                                 COMPATIBILITY SameMinorVersion ${unitscale_independent})
install(FILES "${PROJECT_BINARY_DIR}/unitscale-config.cmake" "${PROJECT_BINARY_DIR}/unitscale-config-version.cmake"
        DESTINATION "${unitscale_package_dir}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# Paths in unitscale.pc are relative to the file's own folder, so that an installed tree can be moved.
set(unitscale_pc_dir "${CMAKE_INSTALL_DATADIR}/pkgconfig")
if(IS_ABSOLUTE "${unitscale_pc_dir}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(unitscale_pc_include "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
else()
  file(RELATIVE_PATH unitscale_pc_include "/prefix/${unitscale_pc_dir}" "/prefix/${CMAKE_INSTALL_INCLUDEDIR}")
  string(PREPEND unitscale_pc_include "\${pcfiledir}/")
endif()
set(unitscale_pc_cflags "-fopenmp-simd")
set(unitscale_pc_libs "")
if(UNITSCALE_USES_OPENMP)
  set(unitscale_pc_cflags "-fopenmp")
  set(unitscale_pc_libs "-fopenmp")
endif()
if(UNITSCALE_BLAS)
  string(APPEND unitscale_pc_cflags " -DUNITSCALE_USE_BLAS")
  list(JOIN BLAS_LIBRARIES " " libraries)
  string(APPEND unitscale_pc_libs " ${BLAS_LINKER_FLAGS} ${libraries}")
endif()
configure_file(cmake/unitscale.pc.in "${PROJECT_BINARY_DIR}/unitscale.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/unitscale.pc" DESTINATION "${unitscale_pc_dir}")

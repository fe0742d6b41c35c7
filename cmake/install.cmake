# SPDX-License-Identifier: MIT
# Installs the headers and a package that find_package(unitscale) finds.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(unitscale_package_dir "${CMAKE_INSTALL_DATADIR}/cmake/unitscale")
install(TARGETS unitscale EXPORT unitscale-targets FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT unitscale-targets NAMESPACE unitscale:: DESTINATION "${unitscale_package_dir}")

configure_package_config_file(cmake/unitscale-config.cmake.in "${PROJECT_BINARY_DIR}/unitscale-config.cmake"
                              INSTALL_DESTINATION "${unitscale_package_dir}")
# Nothing compiled is installed, so one package serves every processor. Before 1.0 a minor version may break code.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/unitscale-config-version.cmake"
                                 COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/unitscale-config.cmake" "${PROJECT_BINARY_DIR}/unitscale-config-version.cmake"
        DESTINATION "${unitscale_package_dir}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

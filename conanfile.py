# SPDX-License-Identifier: MIT
# Recipe for users of Conan 2: `conan create .` packages the headers. Nothing else here needs Python or Conan.
import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import load


class UnitscaleRecipe(ConanFile):
    name = "unitscale"
    license = "MIT"
    description = "Train neural networks in low precision: header-only C++20"
    topics = ("deep-learning", "low-precision", "fp8", "unit-scaling", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"openmp": [True, False]}
    default_options = {"openmp": True}
    exports_sources = "CMakeLists.txt", "cmake/*", "include/*", "LICENSE"
    no_copy_source = True

    def set_version(self):
        header = load(self, os.path.join(self.recipe_folder, "include", "unitscale", "base", "version.hpp"))
        self.version = ".".join(re.search(rf"version_{part} = (\d+);", header).group(1) for part in ("major", "minor", "patch"))

    def requirements(self):
        self.requires("eigen/[>=3.4 <4]", transitive_headers=True)
        self.requires("xtensor/[>=0.24]", transitive_headers=True)

    def validate(self):
        check_min_cppstd(self, 20)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        for part in ("TESTS", "EXAMPLES", "BENCH", "NATIVE"):
            toolchain.cache_variables[f"UNITSCALE_{part}"] = False
        toolchain.cache_variables["UNITSCALE_OPENMP"] = bool(self.options.openmp)
        toolchain.generate()

    def package(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.install()

    def package_id(self):
        self.info.settings.clear()  # nothing compiled is packaged

    def package_info(self):
        # The installed CMake package has the targets and flags: consumers find it as they would without Conan.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("share", "cmake", "unitscale")]
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []

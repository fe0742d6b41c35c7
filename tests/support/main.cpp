// SPDX-License-Identifier: MIT
// The one Catch2 main of all test programs, compiled once.
#define CATCH_CONFIG_RUNNER  // Catch2 2 puts its implementation into the unit with this macro; Catch2 3 ignores it
#include "support/catch.hpp"

/// The leak checker's suppressions: Clang's OpenMP library keeps the thread data of foreign threads.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libomp.so"; }

int main(int argc, char** argv) { return Catch::Session().run(argc, argv); }

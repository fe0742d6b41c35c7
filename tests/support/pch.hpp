// SPDX-License-Identifier: MIT
#pragma once

// Precompiled for the tests: only Catch2 and headers that nearly every test includes.
// Layers above `formats` add unitscale/tensor/backend.hpp (Eigen, xtensor).
// tests/structure checks that every header compiles without this file.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"

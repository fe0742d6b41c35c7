// SPDX-License-Identifier: MIT
#pragma once

// Precompiled for the tests: only Catch2 and what nearly every test includes anyway. Layers above `formats` add
// unitscale/tensor/backend.hpp (Eigen, xtensor). That every header compiles without this is checked in tests/structure.
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

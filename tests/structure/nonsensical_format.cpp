// SPDX-License-Identifier: MIT
// A user's format in one line, UNITSCALE_TEST_FORMAT. If the format is invalid, the compiler's message must give the
// reason.
#include <unitscale/formats/format.hpp>

constexpr unitscale::FloatFormat mine = unitscale::make_format(UNITSCALE_TEST_FORMAT);

static_assert(unitscale::make_format(mine) == mine);

// SPDX-License-Identifier: MIT
// A format of the user's own, UNITSCALE_TEST_FORMAT, in one line. Where it makes no sense the compiler must say why.
#include <unitscale/formats/format.hpp>

constexpr unitscale::FloatFormat mine = unitscale::make_format(UNITSCALE_TEST_FORMAT);

static_assert(unitscale::make_format(mine) == mine);

// SPDX-License-Identifier: MIT
// A user's format in one line, UNITSCALE_TEST_FORMAT or UNITSCALE_TEST_BLOCK_FORMAT. If the format is invalid, the
// compiler's message must give the reason.
#ifdef UNITSCALE_TEST_FORMAT
#include <unitscale/formats/format.hpp>

constexpr unitscale::FloatFormat mine = unitscale::make_format(UNITSCALE_TEST_FORMAT);

static_assert(unitscale::make_format(mine) == mine);
#else
#include <unitscale/formats/block_format.hpp>

constexpr unitscale::BlockFormat mine = unitscale::make_block_format(UNITSCALE_TEST_BLOCK_FORMAT);

static_assert(unitscale::make_block_format(mine) == mine);
#endif

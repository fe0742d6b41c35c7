// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/distributed/communicator.hpp>

namespace unitscale::test {

/// MPI, from the first test that asks to the end of the program.
inline const distributed::Session& mpi_session() {
    static const distributed::Session one;
    return one;
}

}  // namespace unitscale::test

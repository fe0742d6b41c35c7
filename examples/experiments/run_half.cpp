// SPDX-License-Identifier: MIT
#include "experiments/language_run.hpp"

namespace unitscale {

template class experiments::LanguageRun<Half>;
template class train::SavedModel<Half>;
template class analysis::Tracker<Half>;

}  // namespace unitscale

// Which instruction-set tiers this machine can run.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace octavo {

// Slowest first. The last one is what to use. Without those of tests.
const std::vector<const Kernels*>& runnable_tiers();

// By name, those of tests included; null if this machine can not run it.
const Kernels* find_tier(const std::string& name);

// Why a CPU that has AMX goes without it; empty if it does not, or has none.
const std::string& amx_refusal();

}  // namespace octavo

// SPDX-License-Identifier: MIT
#include <unitscale/nn/residual_layer.hpp>

#include "support/op_checks.hpp"
#include "support/test_ops.hpp"

#include <unitscale/nn/module.hpp>
#include <unitscale/ops/gelu.hpp>

#include <cmath>
#include <optional>

using namespace unitscale;

namespace {
const auto branch = [](Variable<float> v) { return ops::gelu(v); };
}

TEST_CASE("ResidualLayer: y = x + branch(norm(x)) by the rule, with the norm before, behind or nowhere") {
    const ResidualRule fixed{.scheme = ResidualScheme::fixed, .tau = 0.5};
    for (const auto placement : {nn::NormPlacement::pre, nn::NormPlacement::post, nn::NormPlacement::none})
        for (const std::optional<ResidualRule>& rule : {std::optional<ResidualRule>{}, std::optional(fixed)}) {
            nn::ResidualLayer<float> layer("net/norm",
                                           {.norm = {.width = 6}, .placement = placement, .residual = rule});
            nn::Norm<float> norm("net/norm", {.width = 6});
            test::OpTape<float> run;
            const auto x = run.input({4, 6});
            const std::optional<double> tau = rule ? std::optional(0.5) : std::nullopt;
            auto [inner, stream] = ops::residual_split(x, tau);
            if (placement == nn::NormPlacement::pre) inner = norm(inner);
            auto want = ops::residual_add(branch(inner), stream, tau);
            if (placement == nn::NormPlacement::post) want = norm(want);
            CHECK(test::elements(layer(x, branch).value()) == test::elements(want.value()));
        }
}

TEST_CASE("ResidualLayer: parameters are the norm's, and dropout is on the branch's output") {
    nn::ResidualLayer<float> layer("net/norm",
                                   {.norm = {.width = 6, .gains = true}, .dropout = 0.25, .count = 6, .blocks = 3});
    const auto parameters = nn::parameters_of<float>(layer);
    REQUIRE(parameters.size() == 1);
    CHECK(parameters[0]->name() == "net/norm/gain");
    CHECK(parameters[0]->facts().depth == 3);
    nn::ResidualLayer<float> none("net/norm",
                                  {.norm = {.width = 6, .gains = true}, .placement = nn::NormPlacement::none});
    CHECK(nn::parameters_of<float>(none).empty());
    CHECK_THROWS_WITH((nn::ResidualLayer<float>("net/norm", {.count = 5, .blocks = 2})),
                      "ResidualLayer net/norm: 5 layers in 2 blocks; expected equal numbers in each");
    nn::ResidualLayer<float> dropped("net/norm", {.norm = {.width = 50}, .dropout = 0.25});
    test::OpTape<float> run;
    const auto x = run.input({100, 50});
    const auto y = dropped(x, branch);
    std::size_t unchanged = 0;
    for (std::size_t i = 0; i < x.value().size(); ++i) unchanged += y.value().data()[i] == x.value().data()[i];
    CHECK(static_cast<double>(unchanged) == Approx(1250.0).margin(5.0 * std::sqrt(5000 * 0.25 * 0.75)));
}

// SPDX-License-Identifier: MIT
#include <unitscale/optim/loss_scaler.hpp>

#include "support/catch.hpp"

#include <map>
#include <string>
#include <vector>

using namespace unitscale;

TEST_CASE("loss scaler: automatic backs off when a step overflows and grows after good steps") {
    optim::LossScaler scaler(
        {.kind = LossScaleKind::automatic, .initial = 1024.0, .growth = 2.0, .backoff = 0.25, .interval = 3});
    CHECK(scaler.scale() == 1024.0);
    CHECK(scaler.update(true));
    CHECK(scaler.update(true));
    CHECK_FALSE(scaler.update(false));  // the count of good steps starts again
    CHECK(scaler.scale() == 256.0);
    CHECK_FALSE(scaler.update(false));
    CHECK(scaler.scale() == 64.0);
    CHECK(scaler.skipped_in_a_row() == 2);
    for (int i = 0; i < 2; ++i) CHECK(scaler.update(true));
    CHECK(scaler.scale() == 64.0);
    CHECK(scaler.update(true));
    CHECK(scaler.scale() == 128.0);
    CHECK(scaler.skipped() == 2);
    CHECK(scaler.skipped_in_a_row() == 0);
    for (int i = 0; i < 200; ++i) CHECK_FALSE(scaler.update(false));
    CHECK(scaler.scale() == 0x1p-126);
}

TEST_CASE("loss scaler: constant skips and stays, none does neither") {
    optim::LossScaler constant({.kind = LossScaleKind::constant, .initial = 8.0});
    CHECK_FALSE(constant.update(false));
    CHECK(constant.update(true));
    CHECK(constant.scale() == 8.0);
    CHECK(constant.skipped() == 1);
    optim::LossScaler none;
    CHECK(none.scale() == 1.0);
    CHECK(none.update(false));
    CHECK(none.skipped() == 0);
    CHECK_THROWS_WITH(optim::LossScaler({.backoff = 2.0}), "loss_scaling: backoff is 2; expected less than 1");
}

TEST_CASE("loss scaler: the scale leaves gradients through their scale, data untouched") {
    optim::LossScaler scaler({.kind = LossScaleKind::constant, .initial = 8.0});
    Parameter<float> weight("weight", Shape{2}, {}), untouched("untouched", Shape{2}, {});
    weight.add_gradient(Tensor<float>(Shape{2}, {16.0f, -4.0f}));
    const std::vector<Parameter<float>*> parameters = {&weight, &untouched};
    scaler.unscale<float>(parameters);
    CHECK(weight.gradient().data()[0] == 16.0f);
    CHECK(weight.gradient().scale() == 0.125);
    CHECK_FALSE(untouched.has_gradient());
}

TEST_CASE("loss scaler: a visitor reads and writes its state") {
    struct Visitor {
        std::map<std::string, double>& saved;
        bool load;
        void number(const std::string& name, double& value) {
            load ? void(value = saved[name]) : void(saved[name] = value);
        }
        void scalar(const std::string& name, std::uint64_t& value) {
            load ? void(value = static_cast<std::uint64_t>(saved[name]))
                 : void(saved[name] = static_cast<double>(value));
        }
    };
    const LossScaling how{.kind = LossScaleKind::automatic, .interval = 2};
    optim::LossScaler first(how), second(how);
    first.update(false);
    first.update(true);
    std::map<std::string, double> saved;
    first.visit_state(Visitor{saved, false});
    second.visit_state(Visitor{saved, true});
    for (const bool finite : {true, false, true}) {
        first.update(finite);
        second.update(finite);
        CHECK(first.scale() == second.scale());
        CHECK(first.skipped() == second.skipped());
    }
}

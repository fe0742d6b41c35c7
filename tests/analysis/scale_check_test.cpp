// SPDX-License-Identifier: MIT
#include <unitscale/analysis/scale_check.hpp>

#include "support/op_checks.hpp"

#include <cmath>

using namespace unitscale;

TEST_CASE("moments: mean, standard deviation and root mean square, scale included") {
    Tensor<float> tensor({4}, {1.0F, 3.0F, 1.0F, 3.0F});
    const auto plain = analysis::moments(tensor);
    CHECK(plain.mean == 2.0);
    CHECK(plain.std == 1.0);
    CHECK(plain.rms == Approx(std::sqrt(5.0)));
    tensor.set_scale(4.0);
    CHECK(analysis::moments(tensor).std == 4.0);
    CHECK(analysis::moments(Tensor<float>()).rms == 0.0);
}

TEST_CASE("scale_check: reports the scale of value and gradients, and sees an op that is not unit-scaled") {
    const auto triple = []<class T>(Tape<T>& tape, std::vector<Variable<T>>& v) {
        Tensor<T> y = tape.make(v[0].shape());
        for (std::size_t i = 0; i < y.size(); ++i) y.data()[i] = T(3) * v[0].value().data()[i];
        return tape.record({"triple", tape.next_site("triple"), 1.0, {1.0}}, {v[0]}, std::move(y),
                           [](BackwardContext<T>& g) { g.add(0, g.take_output_gradient()); });
    };
    const auto report = analysis::scale_check<double>({{200, 100}}, triple);
    CHECK(report.value.std == Approx(3.0).epsilon(0.03));
    CHECK(report.gradients.at(0).std == Approx(1.0).epsilon(0.03));
}

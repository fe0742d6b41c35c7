// SPDX-License-Identifier: MIT
#include <unitscale/nn/embedding.hpp>

#include "support/language_model.hpp"
#include "support/op_checks.hpp"
#include "support/test_ops.hpp"

using namespace unitscale;

TEST_CASE("Embedding: looks rows of its own table up") {
    nn::Embedding<float> table("decoder/tokens", 4, 3);
    std::vector<Parameter<float>*> parameters;
    table.collect(parameters);
    REQUIRE(parameters.size() == 1);
    CHECK(parameters[0] == &table.weight());
    CHECK(table.weight().name() == "decoder/tokens/weight");
    CHECK(table.weight().shape() == Shape{4, 3});
    CHECK(table.weight().facts().role == ParameterRole::embedding);
    CHECK(table.weight().facts().fan_in == 4);
    CHECK(table.weight().facts().fan_out == 3);
    test::randomise(parameters, 1.0);

    test::OpTape<float> run;
    const auto y = table(run.tape, Tensor<std::int32_t>({2, 2}, {3, 0, 1, 3}));
    CHECK(run.state.path(run.tape.node(0).site) == "tokens/embedding");
    CHECK(y.shape() == Shape{2, 2, 3});
    const float* rows = table.weight().value().data();
    std::vector<float> expected;
    for (const std::size_t id : {3u, 0u, 1u, 3u}) expected.insert(expected.end(), rows + 3 * id, rows + 3 * id + 3);
    CHECK(test::elements(y.value()) == expected);

    run.tape.backward(test::sum(y));
    // Row 3 was looked up twice, row 2 never; the factor of V = 4 rows and N = 4 lookups is 1.
    CHECK(test::elements(table.weight().gradient()) == std::vector<float>{1, 1, 1, 1, 1, 1, 0, 0, 0, 2, 2, 2});
    REQUIRE_THROWS_WITH(table(run.tape, Tensor<std::int32_t>({1}, {4})),
                        "embedding: ids[0] is 4; expected a number in [0,4)");
}

TEST_CASE("embedding layer: ids of 64 bits") {
    test::OpTape<float> t;
    nn::Embedding<float> table("table", 5, 2);
    fill_normal(table.weight().write(), {1, 2});
    CHECK(table(t.tape, Tensor<std::int64_t>({1}, {3})).value()(0, 1) == table.weight().value()(3, 1));
}

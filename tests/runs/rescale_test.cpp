// SPDX-License-Identifier: MIT
// The effect of rescaling the gradients of norms' inputs on a decoder in FP16 with FP8 products.
#include <unitscale/analysis/grad_check.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/rescale.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

using namespace unitscale;

namespace {

/// Statistics of the gradients that the norms of a decoder's branches send back.
/// These are the gradients of the first outputs of `residual_split`.
/// `below` counts elements of the data below FP16's normal numbers, and `count` all elements.
/// `least` and `most` are the bounds of the data's root mean square.
struct BranchGradients : Observer<Half> {
    void observe(const TensorEvent<Half>& event) override {
        if (event.pass != Pass::gradient || event.op != "residual_split" || event.index != 0) return;
        double squares = 0.0;
        for (const Half x : event.tensor.span()) {
            const double size = std::abs(static_cast<double>(static_cast<float>(x)));
            squares += size * size;
            below += size < 0x1p-14 ? 1.0 : 0.0;
        }
        const auto size = static_cast<double>(event.tensor.size());
        count += size;
        least = std::min(least, std::sqrt(squares / size));
        most = std::max(most, std::sqrt(squares / size));
    }
    double count = 0.0, below = 0.0, least = std::numeric_limits<double>::infinity(), most = 0.0;
};

struct Run {
    BranchGradients branches{};
    std::vector<Tensor<float>> gradients{};  ///< of the parameters
};

/// One step of a decoder in which the data of the embeddings, and so of the residual stream, is `size` times unit size.
/// Such data arises if a model grows in training or is loaded from a file without scales.
void run(Run& result, bool rescale, float size) {
    Recipe recipe = find_recipe("fp32");
    recipe.scaling = Scaling::propagate;
    recipe.propagate.rescale_gradients = rescale;
    recipe.products = find_recipe("unit-fp8").products;
    test::LanguageModel<Half> model(recipe, {.vocabulary = 50,
                                             .width = 32,
                                             .depth = 3,
                                             .heads = 2,
                                             .length = 16,
                                             .norm = {.kind = nn::NormKind::layer, .gains = true}});
    for (Parameter<Half>* parameter : model.decoder.parameters())
        if (parameter->facts().role == ParameterRole::embedding)
            for (Half& x : parameter->write().span()) x = Half(static_cast<float>(x) * size);
    model.tape.begin_step();
    const auto loss = model.loss(test::random_batch(4, 16, 50));
    model.tape.set_observer(&result.branches);
    model.tape.backward(loss);
    CHECK(model.state.wide_ops().empty());
    for (const Parameter<Half>* parameter : model.decoder.parameters())
        result.gradients.push_back(value<float>(parameter->gradient()));
}

}  // namespace

TEST_CASE(
    "runs: rescaled gradients of norms' inputs stay among FP16's normal numbers; without rescaling, a large stream "
    "makes them underflow") {
    Run without, with;
    run(without, false, 1024.0f);
    run(with, true, 1024.0f);
    REQUIRE(without.branches.count == 6.0 * 4 * 16 * 32);  // two norms per block
    REQUIRE(with.branches.count == without.branches.count);
    CHECK(without.branches.below > 0.99 * without.branches.count);
    CHECK(without.branches.most < 0x1p-14);
    CHECK(with.branches.below < 0.01 * with.branches.count);
    CHECK(with.branches.least >= 1.0);
    CHECK(with.branches.most < 2.0);
    // Residual connections carry the stream's gradient past the norms.
    // So the gradients of the weights are nearly equal in both runs.
    for (std::size_t i = 0; i < with.gradients.size(); ++i)
        CHECK(analysis::relative_error(with.gradients[i], without.gradients[i]) < 0.2);
}

TEST_CASE("runs: where data has unit size, rescaling the gradients of norms' inputs leaves every gradient as it is") {
    Run without, with;
    run(without, false, 1.0f);
    run(with, true, 1.0f);
    CHECK(without.branches.below < 0.01 * without.branches.count);
    CHECK(without.branches.least > 0.1);
    CHECK(without.branches.most < 10.0);
    // Powers of two are exact. Only numbers near 2^-14 may be rounded differently.
    for (std::size_t i = 0; i < with.gradients.size(); ++i)
        CHECK(analysis::relative_error(with.gradients[i], without.gradients[i]) < 0.01);
}

// SPDX-License-Identifier: MIT
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/precision_table.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"

using namespace unitscale;

namespace {

/// A matrix in double, rounded to the format in the table.
std::vector<double> rounded(const float* data, std::size_t size, const std::optional<Quantiser>& quantiser) {
    std::vector<double> result(size);
    for (std::size_t i = 0; i < size; ++i)
        result[i] =
            static_cast<double>(quantiser ? quantise(quantiser->format, data[i], quantiser->options(), i) : data[i]);
    return result;
}

/// The largest distance of `actual` [m,n] from factor * sum over p of a(i,p) b(j,p), relative to the largest such sum.
template <class A, class B>
double product_error(const float* actual, double factor, std::size_t m, std::size_t n, std::size_t k, A&& a, B&& b) {
    double error = 0.0, largest = 1e-30;
    for (std::size_t i = 0; i < m; ++i)
        for (std::size_t j = 0; j < n; ++j) {
            double sum = 0.0;
            for (std::size_t p = 0; p < k; ++p) sum += a(i, p) * b(j, p);
            largest = std::max(largest, std::abs(factor * sum));
            error = std::max(error, std::abs(static_cast<double>(actual[i * n + j]) - factor * sum));
        }
    return error / largest;
}

struct Errors {
    double forward = 0.0, input = 0.0, weight = 0.0;
};

/// The distances of a linear layer's three products from the products of operands rounded to the given formats.
Errors product_errors(const Tape<float>& tape, const Node<float>& node, const ProductFormats& formats) {
    const Slot<float>&x = tape.slot(node.inputs[0]), &w = tape.slot(node.inputs[1]), &y = tape.slot(node.outputs[0]);
    const std::size_t out = w.value->dim(0), in = w.value->dim(1), rows = x.value->size() / in;
    const auto qx = rounded(x.value->data(), rows * in, formats.activation),
               qw = rounded(w.value->data(), out * in, formats.weight);
    const auto qdy = rounded(y.gradient.data(), rows * out, formats.gradient);
    Errors errors;
    errors.forward = product_error(
        y.value->data(), node.alpha, rows, out, in, [&](std::size_t i, std::size_t p) { return qx[i * in + p]; },
        [&](std::size_t j, std::size_t p) { return qw[j * in + p]; });
    errors.weight = product_error(
        w.parameter->gradient().data(), node.betas[1], out, in, rows,
        [&](std::size_t i, std::size_t p) { return qdy[p * out + i]; },
        [&](std::size_t j, std::size_t p) { return qx[p * in + j]; });
    if (x.uses == 1)  // else x's gradient is a sum over its consumers
        errors.input = product_error(
            x.gradient.data(), node.betas[0], rows, in, out,
            [&](std::size_t i, std::size_t p) { return qdy[i * out + p]; },
            [&](std::size_t j, std::size_t p) { return qw[p * in + j]; });
    return errors;
}

double largest(const Errors& errors) { return std::max({errors.forward, errors.input, errors.weight}); }

}  // namespace

namespace {
/// Unit Scaling with every linear layer's operands in FP16, the readout's included.
Recipe fp16_operands() {
    Recipe recipe = find_recipe("unit-fp32");
    recipe.name = "fp16 operands";
    const Quantiser half{.format = fp16};
    for (const ProductKind kind : {ProductKind::linear, ProductKind::readout})
        recipe.products.push_back({.kind = kind, .formats = {.activation = half, .weight = half, .gradient = half}});
    return recipe;
}
}  // namespace

TEST_CASE("precision table: each row has the formats that the op uses in all three products") {
    for (const Recipe& recipe :
         {find_recipe("fp32"), find_recipe("unit-fp32"), fp16_operands(), find_recipe("unit-fp8")}) {
        test::LanguageModel<float> model(recipe, {.vocabulary = 17,
                                                  .width = 16,
                                                  .depth = 2,
                                                  .heads = 2,
                                                  .length = 12,
                                                  .feed_forward = nn::FeedForwardKind::gated_silu});
        test::randomise(model.decoder.parameters(), 1.0);
        model.tape.begin_step({.retain = true});
        model.tape.backward(model.loss(test::random_batch(3, 12, 17)));
        const auto products = model.state.products();
        CHECK(products.size() == 2 * 7 + 1);
        for (const auto& product : products) {
            INFO(recipe.name << ", " << model.state.path(product.site));
            const Node<float>* node = nullptr;
            for (std::size_t i = 0; i < model.tape.node_count(); ++i)
                if (model.tape.node(i).site == product.site) node = &model.tape.node(i);
            REQUIRE(node != nullptr);
            CHECK(std::string_view(node->op) == unitscale::name(product.kind));
            CHECK(largest(product_errors(model.tape, *node, product.formats)) < 2e-6);

            // Without the rounding of one role, the products with that role change.
            const bool one_input = model.tape.slot(node->inputs[0]).uses == 1;
            const auto missed = [&](std::optional<Quantiser> ProductFormats::*role) {
                ProductFormats without = product.formats;
                without.*role = {};
                return product_errors(model.tape, *node, without);
            };
            const double visible = recipe.name == "fp16 operands" ? 2e-5 : 2e-3;
            if (product.formats.activation) {
                const Errors errors = missed(&ProductFormats::activation);
                CHECK(errors.forward > visible);
                CHECK(errors.weight > visible);
            }
            if (product.formats.weight) {
                const Errors errors = missed(&ProductFormats::weight);
                CHECK(errors.forward > visible);
                if (one_input) CHECK(errors.input > visible);
            }
            if (product.formats.gradient) {
                const Errors errors = missed(&ProductFormats::gradient);
                CHECK(errors.weight > visible);
                if (one_input) CHECK(errors.input > visible);
            }
        }
        // The only matrix products are in the table, or attention's own.
        std::size_t linear_ops = 0;
        for (std::size_t i = 0; i < model.tape.node_count(); ++i) {
            const std::string_view op = model.tape.node(i).op;
            linear_ops += op == "linear" || op == "readout" || op == "matmul";
        }
        CHECK(linear_ops == products.size());
    }
}

TEST_CASE("precision table: the text of a one-block model") {
    const auto table = [](const Recipe& recipe) {
        test::LanguageModel<float> model(recipe, {.vocabulary = 5, .width = 4, .depth = 1, .heads = 2, .length = 3});
        CHECK(train::precision_table(model.state) == "product  kind  activation  weight  gradient\n");
        model.tape.begin_step({.gradients = false});
        static_cast<void>(model.loss(test::random_batch(1, 3, 5)));
        return train::precision_table(model.state);
    };
    CHECK(table(find_recipe("unit-fp8")) ==
          "product                                kind     activation  weight  gradient\n"
          "decoder/block0/attention/query/linear  linear   e4m3        e4m3    e5m2\n"
          "decoder/block0/attention/key/linear    linear   e4m3        e4m3    e5m2\n"
          "decoder/block0/attention/value/linear  linear   e4m3        e4m3    e5m2\n"
          "decoder/block0/attention/out/linear    linear   e4m3        e4m3    e5m2\n"
          "decoder/block0/ffn/up/linear           linear   e4m3        e4m3    e5m2\n"
          "decoder/block0/ffn/down/linear         linear   e4m3        e4m3    e5m2\n"
          "decoder/readout/readout                readout  -           -       -\n");
    const std::string half = table(fp16_operands());
    CHECK(half.find("decoder/readout/readout                readout  fp16        fp16    fp16\n") != std::string::npos);
    CHECK(table(find_recipe("fp32")).find("e4m3") == std::string::npos);
}

TEST_CASE("precision table: a role's two products, where they round it differently") {
    const auto row = [](const Recipe& recipe) {
        test::LanguageModel<float> model(recipe, {.vocabulary = 5, .width = 4, .depth = 2, .heads = 2, .length = 3});
        model.tape.begin_step({.gradients = false});
        static_cast<void>(model.loss(test::random_batch(1, 3, 5)));
        const std::string table = train::precision_table(model.state);
        const std::size_t begin = table.find("decoder/block0/ffn/up/linear");
        std::string line = table.substr(begin, table.find('\n', begin) - begin);
        for (std::size_t at = line.find("   "); at != std::string::npos; at = line.find("   ")) line.erase(at, 1);
        return line;  // columns are two blanks apart
    };
    CHECK(row(find_recipe("mxfp8-hybrid")) ==
          "decoder/block0/ffn/up/linear  linear  mxfp8_e4m3_rceil  mxfp8_e4m3_rceil  mxfp8_e5m2_rceil");
    CHECK(row(find_recipe("nvfp4")) ==
          "decoder/block0/ffn/up/linear  linear  nvfp4 / nvfp4 rotated by 16  nvfp4_square  "
          "nvfp4 stochastic / nvfp4 stochastic rotated by 16");
    Recipe recipe = find_recipe("unit-fp8");
    ProductFormats& formats = recipe.products.front().formats;
    REQUIRE(recipe.products.front().kind == ProductKind::linear);
    formats.set(OperandSlot::weight_gradient_x, OperandRule::in_blocks(mxfp4));
    formats.set(OperandSlot::input_gradient_w, {});
    Quantiser few{.format = e5m2, .rounding = Rounding::stochastic, .bits = 8};
    formats.set(OperandSlot::weight_gradient_dy, {few, {}});
    CHECK(row(recipe) ==
          "decoder/block0/ffn/up/linear  linear  e4m3 / mxfp4  e4m3 / -  e5m2 / e5m2 stochastic with 8 bits");
    // Rules that differ in a number that the words leave out are two rules all the same.
    formats.set(OperandSlot::weight_gradient_x,
                {Quantiser{.format = e4m3}, {.source = ScaleSource::none, .history = 3}});
    CHECK(row(recipe).find("  e4m3 / e4m3  ") != std::string::npos);
}

TEST_CASE("precision table: attention has two lines where it rounds operands, else none") {
    Recipe recipe = find_recipe("unit-fp8");
    const ScaleRule amax{.source = ScaleSource::amax};
    ProductFormats formats{
        .activation = Quantiser{.format = e4m3}, .gradient = Quantiser{.format = e5m2}, .activation_scale = amax};
    formats.set(OperandSlot::value_gradient_p, OperandRule::in_blocks(mxfp4));
    formats.set(OperandSlot::query_gradient_ds, {});
    recipe.products.push_back({.kind = ProductKind::attention, .pattern = "*/block0/*", .formats = formats});
    test::LanguageModel<float> model(recipe, {.vocabulary = 5, .width = 4, .depth = 2, .heads = 2, .length = 3});
    model.tape.begin_step();
    model.tape.backward(model.loss(test::random_batch(1, 3, 5)));
    const std::string table = train::precision_table(model.state);
    CHECK(
        table.find("decoder/block0/attention/attention     attention, logits  e4m3 amax          e4m3 amax  - / e5m2"
                   "\n"
                   "decoder/block0/attention/attention     attention, output  e4m3 amax / mxfp4  e4m3 amax  e5m2\n") !=
        std::string::npos);
    CHECK(table.find("block1/attention/attention") == std::string::npos);
}

TEST_CASE("precision table: Unit Scaling as published, in words") {
    const Recipe us = find_recipe("us-fp32");
    CHECK(train::scaling_text(us) ==
          "unit, parametrisation unit, factors joined by gmean, gelu's constants of the Unit Scaling paper, biases "
          "beside alpha");
    CHECK(train::parametrisation_text(us) == "unit, vectors at width^-1/2 times the rate, uniform initial weights");
    Recipe embedding = find_recipe("umup-fp32");
    embedding.embedding_rate = EmbeddingRate::constant;
    CHECK(train::parametrisation_text(embedding) == "umup, embedding at the whole rate");
    CHECK(train::scaling_text(find_recipe("unit-fp32")) == "unit, parametrisation unit");
    CHECK(train::parametrisation_text(find_recipe("unit-fp32")) == "unit");
}

TEST_CASE("precision table: quantisers in words") {
    CHECK(train::quantiser_text({}) == "-");
    CHECK(train::quantiser_text(Quantiser{.format = e5m2}) == "e5m2");
    CHECK(train::quantiser_text(
              Quantiser{.format = e4m3, .rounding = Rounding::stochastic, .overflow = Overflow::to_infinity}) ==
          "e4m3 stochastic overflowing");
}

TEST_CASE("precision table: storage in words") {
    CHECK(train::storage_text({}) == "fp32, master weights none, moments as computed");
    CHECK(train::storage_text(find_recipe("bf16").storage) == "bf16, master weights as computed, moments as computed");
    CHECK(train::storage_text(find_recipe("scalify-fp8-4").storage) ==
          "fp16, master weights none, moments fp16 scaled by tensor, weight gradients e5m2 amax, rescaled every 20 "
          "updates");
    CHECK(train::storage_text({.first_moment = {.format = fp16, .propagated = true}}) ==
          "fp32, master weights none, moments fp16 with a propagated scale and as computed");
    CHECK(train::storage_text({.master = StateFormat{.format = bf16, .scaled = false, .rounding = Rounding::stochastic},
                               .first_moment = {.format = e4m3, .block = 128}}) ==
          "fp32, master weights bf16 stochastic, moments e4m3 scaled by 128 and as computed");
}

TEST_CASE("precision table: how gradients travel, in words") {
    Recipe recipe = find_recipe("fp32");
    const auto text = [&](const Communication& rule) {
        recipe.communication = rule;
        return train::scaling_text(recipe);
    };
    const std::string before = "none, parametrisation standard, gradients sent as ",
                      behind = ", gradients clipped at 1";
    CHECK(text({}) == before + "e4m3 scaled by tensor" + behind);
    CHECK(text({.element = {.format = fp32}}) == before + "fp32" + behind);
    CHECK(text({.element = {.format = e5m2, .rounding = Rounding::stochastic}, .block = 128, .error_feedback = true}) ==
          before + "e5m2 scaled by 128 " + std::string(name(Rounding::stochastic)) + " with error feedback" + behind);
}

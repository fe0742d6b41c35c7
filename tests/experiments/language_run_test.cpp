// SPDX-License-Identifier: MIT
#include "experiments/language_run.hpp"
#include "support/catch.hpp"
#include "support/small_runs.hpp"
#include "support/temporary_folder.hpp"

#include <unitscale/train/evaluate.hpp>
#include <unitscale/train/precision_table.hpp>

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdio>
#include <regex>
#include <sstream>

using namespace unitscale;
using experiments::LanguageRunOptions;
using test::File;
using test::proverb;
using test::temporary_file;
using test::text_of;

namespace {

LanguageRunOptions small(const std::filesystem::path& data) {
    return {.data = {data},
            .width = 16,
            .depth = 1,
            .heads = 2,
            .seq = 16,
            .batch = 4,
            .steps = 12,
            .eval_every = 5,
            .sample = 40};
}

/// The message of a run that fails; "" if it succeeds.
std::string failure_of(const LanguageRunOptions& options) {
    const File out = temporary_file();
    try {
        static_cast<void>(experiments::run_language(options, out.get(), out.get()));
    } catch (const experiments::RunFailed& failure) {
        return failure.what();
    }
    return "";
}

/// What ends a run after its eighth step, as a kill does.
struct CutOff {};
void cut_off(const experiments::LanguageStep& step, const ScalingState&) {
    if (step.step == 8) throw CutOff{};
}

std::vector<nlohmann::json> lines_of(const std::filesystem::path& file) {
    std::vector<nlohmann::json> lines;
    std::istringstream stream(test::TemporaryFolder::read(file));
    for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
}

}  // namespace

TEST_CASE("language run: bad data, recipe and log are errors before any training") {
    const test::TemporaryFolder folder;
    const auto message = [](const LanguageRunOptions& options) {
        try {
            static_cast<void>(experiments::describe_language(options));
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("none");
    };
    auto options = small(folder.write("text.txt", proverb(40)));
    CHECK(message(options) == "none");
    options.recipe = "fp7";
    CHECK(message(options).starts_with("recipe: unknown name 'fp7'; expected one of fp32, "));
    const auto missing = folder.path() / "missing.txt";
    CHECK(message(small(missing)) == "data: " + missing.string() + " does not exist");
    const auto empty = folder.write("empty.txt", "");
    CHECK(message(small(empty)) == "data: " + empty.string() + " is empty");
    const auto latin = folder.write("latin.txt", proverb(40) + "caf\xE9 au lait");
    CHECK(message(small(latin)) ==
          "data: " + latin.string() + " is not UTF-8: byte 0xe9 at offset " + std::to_string(40 * 32 + 3));
    CHECK(message(small(folder.write("short.txt", proverb(5)))) ==
          "data: 160 characters are too few; sequences of 16 need at least 161, so that the last tenth holds one");
    options = small(folder.path() / "text.txt");
    options.log = (folder.path() / "no" / "log.jsonl").string();
    CHECK(message(options) == "log: " + options.log + " cannot be opened for writing");
}

TEST_CASE("language run: trains, logs every step, evaluates, writes and reports") {
    const test::TemporaryFolder folder;
    for (const char* name : {"fp32", "unit-fp8", "fp16-loss-scaled", "bf16"}) {
        INFO(name);
        auto options = small(folder.write("text.txt", proverb(60)));
        options.recipe = name;
        options.log = (folder.path() / "log.jsonl").string();
        const Recipe recipe = experiments::recipe_of(options);
        const bool scaled = recipe.loss_scaling.kind != LossScaleKind::none;
        const File out = temporary_file(), progress = temporary_file();
        std::vector<experiments::LanguageStep> steps;
        std::string table;
        const auto result = experiments::run_language(
            options, out.get(), progress.get(), [&](const experiments::LanguageStep& step, const ScalingState& state) {
                steps.push_back(step);
                table = train::precision_table(state);
            });
        CHECK(result.recipe == name);
        CHECK(result.steps == 12);
        CHECK(result.train_bpc > 0.0);
        CHECK(result.train_bpc < 6.0);
        CHECK(result.valid_bpc > 0.0);
        CHECK(result.valid_bpc < 4.5);  // 17 characters of equal probability have 4.09 bits each
        CHECK(result.tokens_per_s > 0.0);
        CHECK(result.seconds > 0.0);
        CHECK(result.sample.size() == 40);
        CHECK(result.words.known <= result.words.total);
        const std::regex line(
            "result recipe=[a-z0-9-]+ steps=\\d+ train_bpc=\\d+\\.\\d{4} valid_bpc=\\d+\\.\\d{4} tokens_per_s=\\d+ "
            "peak_rss_mb=\\d+ "
            "seconds=\\d+\\.\\d");
        CHECK(std::regex_match(result.line(), line));
        CHECK(result.line().starts_with(concatenate("result recipe=", name, " steps=12 ")));
        const std::size_t element = recipe.storage.element == ElementType::float32 ? 4 : 2;
        const std::size_t parameters = result.weight_bytes / element;
        CHECK(parameters > 16 * 16 * 12);
        const std::size_t kept = (recipe.storage.master ? 3 : 2) * 4 * parameters;
        CHECK(result.state_bytes >= kept);
        CHECK(result.state_bytes < 2 * kept + 100'000);  // counted in the allocator's blocks
        CHECK(result.step_bytes > result.weight_bytes);
        CHECK(result.skipped == 0);

        const auto log = lines_of(options.log);
        REQUIRE(log.size() == 12);
        REQUIRE(steps.size() == 12);
        double sum = 0.0;
        for (std::size_t i = 0; i < log.size(); ++i) {
            CHECK(log[i].at("step") == i + 1);
            CHECK(log[i].at("train_bpc").is_number_float());
            CHECK(log[i].at("learning_rate").get<double>() > 0.0);
            CHECK(log[i].at("tokens_per_s").get<double>() > 0.0);
            CHECK(log[i] == nlohmann::json(steps[i].json()));
            CHECK(log[i].contains("gradient_norm") == (recipe.clip_norm > 0.0 || scaled));
            CHECK(log[i].contains("loss_scale") == scaled);
            if (scaled) CHECK(log[i].at("loss_scale") == recipe.loss_scaling.initial);
            CHECK(log[i].contains("valid_bpc_part") == (i + 1 == 5 || i + 1 == 10));
            if (i + 1 == 12) sum += log[i].at("train_bpc").get<double>();
        }
        CHECK(sum == Approx(result.train_bpc));  // the last tenth of 12 steps is one
        CHECK(log[0].at("learning_rate").get<double>() == Approx(recipe.learning_rate));
        CHECK(log[11].at("learning_rate").get<double>() == Approx(0.1 * recipe.learning_rate));
        // Flat logits of 17 characters give nearly this first loss; logits of unit scale add about half a nat.
        const double extra = recipe.scaling == Scaling::unit ? 0.5 * train::bits_per_nat : 0.0;
        CHECK(log[0].at("train_bpc").get<double>() == Approx(std::log2(17.0) + extra).epsilon(0.06));

        const std::string narration = text_of(out.get());
        CHECK(narration.starts_with(concatenate("recipe      ", name, ": ")));
        CHECK(narration.find("vocabulary of 17 characters") != std::string::npos);
        CHECK(narration.find(table) != std::string::npos);
        CHECK(narration.find(concatenate("\nstorage     ", train::storage_text(recipe.storage), '\n')) !=
              std::string::npos);
        CHECK(narration.find("step 5: ") != std::string::npos);
        CHECK(text_of(progress.get()).find("step 12/12") != std::string::npos);
    }
}

TEST_CASE("language run: a test part takes the second half of the last tenth, and changes no step") {
    const test::TemporaryFolder folder;
    // The last twentieth is a text that training has not seen.
    auto options = small(folder.write("text.txt", proverb(60) + std::string(101, 'e')));
    options.quiet = true;
    options.sample = 0;
    const File out = temporary_file();
    const auto run = [&] { return experiments::run_language(options, out.get(), out.get()); };
    const experiments::LanguageRunResult without = run();
    CHECK_FALSE(without.test_bpc.has_value());
    options.test = true;
    const experiments::LanguageRunResult with = run();
    REQUIRE(with.test_bpc.has_value());
    CHECK(with.train_bpc == without.train_bpc);

    experiments::LanguageRun<float> again([&] {
        LanguageRunOptions plain = options;
        plain.recipe = "fp32";
        return plain;
    }());
    CHECK(again.split().validation.size() == 101);
    CHECK(again.split().test.size() == 102);
    CHECK(again.description().find(" characters to train on, 101 to validate, 102 to test\n") != std::string::npos);
    options.recipe = "fp32";
    const experiments::LanguageRunResult fp32 = run();
    again.plan();
    again.take_steps({});
    const auto loss_of = [&](std::span<const std::int32_t> tokens) {
        return train::evaluate(again.model(), again.tape(), tokens, options.seq, options.batch);
    };
    CHECK(fp32.valid_bpc == loss_of(again.split().validation));
    CHECK(fp32.test_bpc == loss_of(again.split().test));
    CHECK(fp32.test_bpc != fp32.valid_bpc);
    options.data = {folder.write("short.txt", proverb(10))};
    CHECK_THROWS_WITH(run(),
                      "data: 320 characters are too few; sequences of 16 need at least 331, so that each half of "
                      "the last tenth holds one");
}

TEST_CASE("language run: quiet writes nothing; one seed gives one run for any number of micro-batches and threads") {
    const test::TemporaryFolder folder;
    const auto data = folder.write("text.txt", proverb(60));
    const auto run_with = [&](auto&& change) {
        auto options = small(data);
        options.quiet = true;
        change(options);
        const File out = temporary_file();
        const auto result = experiments::run_language(options, out.get(), out.get());
        CHECK(text_of(out.get()).empty());
        return result;
    };
    const auto first = run_with([](auto&) {});
    const auto again = run_with([](auto& o) { o.threads = 2, o.eval_every = 1; });
    CHECK(again.train_bpc == first.train_bpc);
    CHECK(again.valid_bpc == first.valid_bpc);
    CHECK(again.sample == first.sample);
    for (const char* recipe : {"unit-fp16", "bf16", "scalify-fp8-4"}) {
        const auto one = run_with([&](auto& o) { o.recipe = recipe; });
        const auto two = run_with([&](auto& o) { o.recipe = recipe, o.threads = 2; });
        CHECK(one.train_bpc == two.train_bpc);
        CHECK(one.valid_bpc == two.valid_bpc);
        CHECK(one.sample == two.sample);
    }
    const auto other = run_with([](auto& o) { o.seed = 2; });
    CHECK(other.train_bpc != first.train_bpc);
    CHECK(other.valid_bpc != first.valid_bpc);
    const auto whole = run_with([](auto& o) { o.recipe = "unit-fp32"; });
    const auto parts = run_with([](auto& o) { o.recipe = "unit-fp32", o.micro_batches = 4; });
    CHECK(parts.train_bpc == Approx(whole.train_bpc).epsilon(1e-4));
    CHECK(parts.valid_bpc == Approx(whole.valid_bpc).epsilon(1e-4));
    CHECK(run_with([](auto& o) { o.sample = 0; }).sample.empty());
    const auto likeliest = run_with([](auto& o) { o.temperature = 5.0, o.top_k = 1; });
    CHECK(likeliest.sample == run_with([](auto& o) { o.temperature = 0.0; }).sample);
    CHECK(likeliest.sample != run_with([](auto& o) { o.temperature = 5.0; }).sample);
}

TEST_CASE("language run: a loss that is no longer finite ends the run, names the step and leaves whole log lines") {
    const test::TemporaryFolder folder;
    for (const char* recipe : {"fp32", "unit-fp8"}) {
        auto options = small(folder.write("text.txt", proverb(60)));
        options.recipe = recipe;
        options.lr = 3e38;
        options.warmup = 1;
        options.log = (folder.path() / "log.jsonl").string();
        const File out = temporary_file();
        std::string message = failure_of(options);
        INFO(recipe << ": " << message);
        CHECK(std::regex_match(message, std::regex("train: the (loss|gradient norm) is (nan|-nan|inf) at step [2-9]; "
                                                   "try a lower --lr \\(it is 3e\\+38\\)")));
        const auto log = lines_of(options.log);
        CHECK(log.size() >= 1);
        CHECK(log.size() < 12);
        for (std::size_t i = 0; i < log.size(); ++i) CHECK(log[i].at("step") == i + 1);
        CHECK(test::TemporaryFolder::read(options.log).back() == '\n');

        // Without a following step the last evaluation finds the failure.
        options.steps = 1;
        message = failure_of(options);
        CHECK(std::regex_match(
            message,
            std::regex(
                "train: the validation loss is (nan|-nan|inf) after step 1; try a lower --lr \\(it is 3e\\+38\\)")));
    }
}

TEST_CASE("language run: a log that cannot be written any more is a failed run, not bad arguments") {
    if (!std::filesystem::exists("/dev/full")) return;
    const test::TemporaryFolder folder;
    auto options = small(folder.write("text.txt", proverb(60)));
    options.log = "/dev/full";
    const File out = temporary_file();
    const std::string message = failure_of(options);
    CHECK(message == "log: /dev/full cannot be written");
}

TEST_CASE(
    "language run: a loss scale that is too large is halved, its steps are not taken, and the log and the narration "
    "say so") {
    const test::TemporaryFolder folder;
    auto options = small(folder.write("text.txt", proverb(60)));
    options.recipe = "fp16-auto-loss-scaled";
    options.set = {"loss_scaling.initial=1073741824"};
    options.log = (folder.path() / "log.jsonl").string();
    options.steps = 24;
    const File out = temporary_file(), progress = temporary_file();
    const auto result = experiments::run_language(options, out.get(), progress.get());
    CHECK(result.skipped >= 3);
    CHECK(result.skipped < 20);
    const auto log = lines_of(options.log);
    REQUIRE(log.size() == 24);
    double scale = 0x1p30;
    std::size_t skipped = 0;
    for (const auto& line : log) {
        CHECK(line.at("loss_scale").get<double>() == scale);
        const bool taken = line.at("gradient_norm").is_number();  // JSON has no infinity
        skipped += taken ? 0 : 1;
        scale *= taken ? 1.0 : 0.5;
        CHECK(line.at("skipped") == skipped);
    }
    CHECK(skipped == result.skipped);
    CHECK(log.back().at("train_bpc").get<double>() < log.front().at("train_bpc").get<double>());
    CHECK(text_of(out.get()).find(concatenate(
              '\n', skipped, " of 24 steps were not taken: their loss scale was too large\n")) != std::string::npos);

    // A run that skipped all of its steps has trained nothing.
    options.set = {"loss_scaling.initial=1e30"};
    options.steps = 5;
    CHECK_THROWS_WITH(
        experiments::run_language(options, out.get(), progress.get()),
        Catch::StartsWith("train: the gradient norm is ") && Catch::Contains(" at step 5; try a lower --lr"));
    // The 51st skipped step in a row ends the run.
    options.set = {"loss_scaling.initial=1e30"};
    options.steps = 60;
    CHECK_THROWS_WITH(
        experiments::run_language(options, out.get(), progress.get()),
        Catch::StartsWith("train: the gradient norm is ") && Catch::Contains(" at step 51; try a lower --lr"));
}

TEST_CASE("language run: an interrupted run continues from a checkpoint to equal bits, for every kind of storage") {
    const test::TemporaryFolder folder;
    for (const char* recipe : {"fp32", "fp16-auto-loss-scaled", "bf16", "unit-fp16", "scalify-fp8-4"}) {
        INFO(recipe);
        auto options = small(folder.write("text.txt", proverb(60)));
        options.recipe = recipe;
        options.quiet = true;
        options.save_every = 6;
        const File out = temporary_file();
        options.save = (folder.path() / "whole.safetensors").string();
        const auto whole = experiments::run_language(options, out.get(), out.get());
        options.save = (folder.path() / "parts.safetensors").string();
        CHECK_THROWS_AS(experiments::run_language(options, out.get(), out.get(), cut_off), CutOff);
        options.resume = options.save;
        std::size_t steps = 0;
        const auto resumed =
            experiments::run_language(options, out.get(), out.get(), [&](const auto&, const auto&) { ++steps; });
        CHECK(steps == 6);
        CHECK(resumed.train_bpc == whole.train_bpc);
        CHECK(resumed.valid_bpc == whole.valid_bpc);
        CHECK(resumed.sample == whole.sample);
        CHECK(resumed.state_bytes == whole.state_bytes);
        CHECK(test::TemporaryFolder::read(folder.path() / "parts.safetensors") ==
              test::TemporaryFolder::read(folder.path() / "whole.safetensors"));
    }
}

TEST_CASE("language run: every optimiser trains, resumes to equal bits, and is not mistaken for another") {
    const test::TemporaryFolder folder;
    std::set<double> losses;
    for (const char* optimiser : {"adam", "sgd", "lamb"}) {
        INFO(optimiser);
        auto options = small(folder.write("text.txt", proverb(60)));
        options.recipe = "us-fp16";
        options.model = "unit-scaling";
        options.optimiser = optimiser;
        options.schedule = "half-life", options.warmup = 0, options.masked = 3;
        options.lr = std::string(optimiser) == "sgd" ? 0.001 : 0.01;
        options.quiet = true;
        options.sample = 20;
        const File out = temporary_file();
        const auto whole = experiments::run_language(options, out.get(), out.get());
        CHECK(whole.sample.size() >= 20);
        losses.insert(whole.valid_bpc);
        options.save = (folder.path() / "run.safetensors").string();
        options.save_every = 6;
        CHECK_THROWS_AS(experiments::run_language(options, out.get(), out.get(), cut_off), CutOff);
        options.resume = options.save;
        CHECK(experiments::run_language(options, out.get(), out.get()).valid_bpc == whole.valid_bpc);
        auto other = options;
        other.optimiser = std::string(optimiser) == "lamb" ? "adam" : "lamb";
        CHECK_THROWS_WITH(experiments::run_language(other, out.get(), out.get()),
                          concatenate("--resume: ", options.resume, " was trained with --optimiser ", optimiser,
                                      ", not ", other.optimiser));
    }
    CHECK(losses.size() == 3);
}

TEST_CASE("language run: rates of parameters change the losses, hold after a resumption, and cannot change there") {
    const test::TemporaryFolder folder;
    const File out = temporary_file();
    auto options = small(folder.write("text.txt", proverb(60)));
    options.quiet = true;
    options.sample = 0;
    const auto loss = [&] { return experiments::run_language(options, out.get(), out.get()).valid_bpc; };
    const double usual = loss();
    options.rates = {"*=1"};
    CHECK(loss() == usual);
    options.rates = {"*readout/weight=0", "*/query/weight=4"};
    const double changed = loss();
    CHECK(changed != usual);
    CHECK(experiments::describe_language(options).find(
              "cosine to 0.1, factors on rates *readout/weight=0, */query/weight=4, seed 1") != std::string::npos);
    options.rates = {"*=0.5", "*readout/weight=0", "*=1", "*readout/weight=0", "*/query/weight=4"};  // the last hold
    CHECK(loss() == changed);

    options.rates = {"*readout/weight=0", "*/query/weight=4"};
    options.save = (folder.path() / "run.safetensors").string();
    options.save_every = 6;
    CHECK_THROWS_AS(experiments::run_language(options, out.get(), out.get(), cut_off), CutOff);
    options.resume = options.save;
    CHECK(loss() == changed);
    options.rates.pop_back();
    CHECK_THROWS_WITH(loss(), concatenate("--resume: ", options.resume,
                                          " was trained with --rate *readout/weight=0, */query/weight=4, not "
                                          "*readout/weight=0"));
    options.rates.clear();
    CHECK_THROWS_WITH(loss(), Catch::EndsWith("*/query/weight=4, not none"));
}

TEST_CASE("language run: weights go from one storage to another, and a note reports the rounding") {
    const test::TemporaryFolder folder;
    const auto file = (folder.path() / "weights.safetensors").string();
    const auto run_with = [&](const char* recipe, bool save) {
        auto options = small(folder.write("text.txt", proverb(60)));
        options.recipe = recipe;
        options.quiet = true;
        options.sample = 0;
        (save ? options.save : options.weights) = file;
        if (!save) options.steps = 1, options.warmup = 0, options.lr = 1e-9;
        const File out = temporary_file();
        const double bits = experiments::run_language(options, out.get(), out.get()).valid_bpc;
        return std::pair(bits, text_of(out.get()));
    };
    const std::string rounded = "weights were rounded to the type of this model's\n";
    const auto [wide, none] = run_with("fp32", true);
    CHECK(none.empty());
    for (const char* recipe : {"fp16", "bf16"}) {
        const auto [bits, note] = run_with(recipe, false);
        CHECK(note.ends_with(rounded));
        CHECK(bits == Approx(wide).epsilon(0.01));
        CHECK(bits != wide);
    }
    const auto [propagated, notes] = run_with("scalify-fp16-2", false);
    CHECK(notes.find("has no scales; ") != std::string::npos);
    CHECK(notes.ends_with(rounded));
    CHECK(propagated == Approx(wide).epsilon(0.01));
    const auto [narrow, still_none] = run_with("fp16", true);
    CHECK(still_none.empty());
    const auto [bits, note] = run_with("fp32", false);
    CHECK(note.empty());
    CHECK(bits == Approx(narrow).epsilon(0.01));
}

TEST_CASE("language run: weight decay is of the parametrisation's kind") {
    const test::TemporaryFolder folder;
    LanguageRunOptions options = small(folder.write("text.txt", proverb(40)));
    options.lr = 1e-12;  // so small that only decay changes the weights
    options.warmup = 0;
    options.weight_decay = 0.5;
    options.quiet = true;
    options.sample = 0;
    const auto left_of_weights = [&](const char* recipe) {
        options.recipe = recipe;
        experiments::LanguageRun<float> run(options);
        const auto size = [&] {
            double sum = 0.0;
            for (const Parameter<float>* parameter : run.model().parameters())
                for (const float x : parameter->value().span()) sum += static_cast<double>(x) * static_cast<double>(x);
            return std::sqrt(sum);
        };
        const double before = size();
        const File out = temporary_file();
        static_cast<void>(run.run(out.get(), out.get()));
        return size() / before;
    };
    // Independent decay in a step is half of the schedule's share of its peak, whatever the learning rate.
    double left = 1.0;
    const optim::Schedule schedule{.kind = optim::ScheduleKind::cosine, .peak = 1.0, .steps = 12, .warmup = 0};
    for (std::size_t step = 1; step <= 12; ++step) left *= 1.0 - 0.5 * schedule.at(step);
    CHECK(left_of_weights("umup-fp32") == Approx(left).epsilon(1e-5));
    CHECK(left_of_weights("fp32") == Approx(1.0).epsilon(1e-5));  // decay coupled to a learning rate of almost 0
}

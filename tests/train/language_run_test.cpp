// SPDX-License-Identifier: MIT
#include <unitscale/train/language_run.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"
#include "support/temporary_folder.hpp"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <memory>
#include <regex>
#include <sstream>

using namespace unitscale;
using train::LanguageRunOptions;

namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
File temporary_file() { return {std::tmpfile(), std::fclose}; }
std::string text_of(std::FILE* file) {
    std::rewind(file);
    std::string text;
    for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
    return text;
}

std::string proverb(std::size_t times) {
    std::string text;
    for (std::size_t i = 0; i < times; ++i) text += "the early bird catches the worm\n";
    return text;
}

LanguageRunOptions small(const std::filesystem::path& data) {
    return {
        .data = {data}, .width = 16, .depth = 1, .heads = 2, .seq = 16, .batch = 4, .steps = 12, .eval_every = 5, .sample = 40};
}

std::vector<nlohmann::json> lines_of(const std::filesystem::path& file) {
    std::vector<nlohmann::json> lines;
    std::istringstream stream(test::TemporaryFolder::read(file));
    for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
}

}  // namespace

TEST_CASE("language run: options that make no sense are errors that name the option") {
    const auto message = [](auto&& change) {
        LanguageRunOptions options = small("text.txt");
        change(options);
        try {
            options.validate();
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("none");
    };
    CHECK(message([](auto&) {}) == "none");
    CHECK(message([](auto& o) { o.data.clear(); }) == "--data: no path given; expected files or folders of text");
    CHECK(message([](auto& o) { o.width = 0; }) == "--width: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.depth = 0; }) == "--depth: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.heads = 0; }) == "--heads: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.seq = 0; }) == "--seq: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.batch = 0; }) == "--batch: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.steps = 0; }) == "--steps: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.micro_batches = 0; }) == "--micro-batches: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.depth = static_cast<std::size_t>(-1); }) ==
          "--depth: is 18446744073709551615; expected at most 1000000000");
    CHECK(message([](auto& o) { o.heads = 3; }) == "--heads: width 16 is not divisible by 3 heads");
    CHECK(message([](auto& o) { o.micro_batches = 3; }) == "--micro-batches: batch 4 is not divisible by 3 micro-batches");
    CHECK(message([](auto& o) { o.threads = 0; }) == "--threads: is 0; expected at least 1");
    CHECK(message([](auto& o) { o.warmup = 13; }) == "--warmup: 13 steps are more than the run's 12");
    CHECK(message([](auto& o) { o.lr = 0.0; }) == "--lr: is 0; expected a positive number");
    CHECK(message([](auto& o) { o.lr = -1.0; }) == "--lr: is -1; expected a positive number");
    CHECK(message([](auto& o) { o.lr = std::nan(""); }) == "--lr: is nan; expected a positive number");
    CHECK(message([](auto& o) { o.temperature = -1.0; }) == "--temperature: is -1; expected 0 or more");
    CHECK(message([](auto& o) { o.top_k = 2'000'000'000; }) == "--top-k: is 2000000000; expected at most 1000000000");
    CHECK(message([](auto& o) {
              o.warmup = 0, o.lr = 0.1, o.micro_batches = 4, o.eval_every = 0, o.sample = 0, o.temperature = 0.0;
          }) == "none");
}

TEST_CASE("language run: bad data, recipe and log are errors before any training") {
    const test::TemporaryFolder folder;
    const auto message = [](const LanguageRunOptions& options) {
        try {
            train::LanguageRun run(options);
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("none");
    };
    auto options = small(folder.write("text.txt", proverb(40)));
    CHECK(message(options) == "none");
    options.recipe = "fp7";
    CHECK(message(options) ==
          "recipe: unknown name 'fp7'; expected one of fp32, unit-fp32, unit-fp16, unit-fp8, "
          "fp8-amax, fp8-cscale, fp8-delayed");
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
    for (const char* recipe : {"fp32", "unit-fp8"}) {
        auto options = small(folder.write("text.txt", proverb(60)));
        options.recipe = recipe;
        options.log = (folder.path() / "log.jsonl").string();
        const File out = temporary_file(), progress = temporary_file();
        train::LanguageRun run(options);
        const auto result = run.run(out.get(), progress.get());
        CHECK(result.recipe == recipe);
        CHECK(result.steps == 12);
        CHECK(result.train_bpc > 0.0);
        CHECK(result.train_bpc < 6.0);
        CHECK(result.valid_bpc > 0.0);
        CHECK(result.valid_bpc < 4.5);  // 17 characters; alike they would be 4.09 bits each
        CHECK(result.tokens_per_s > 0.0);
        CHECK(result.seconds > 0.0);
        CHECK(result.sample.size() == 40);
        CHECK(result.words.known <= result.words.total);
        const std::regex line(
            "result recipe=[a-z0-9-]+ steps=\\d+ train_bpc=\\d+\\.\\d{4} valid_bpc=\\d+\\.\\d{4} tokens_per_s=\\d+ "
            "peak_rss_mb=\\d+ "
            "seconds=\\d+\\.\\d");
        CHECK(std::regex_match(result.line(), line));
        CHECK(result.line().starts_with(concatenate("result recipe=", recipe, " steps=12 ")));

        const auto log = lines_of(options.log);
        REQUIRE(log.size() == 12);
        double sum = 0.0;
        for (std::size_t i = 0; i < log.size(); ++i) {
            CHECK(log[i].at("step") == i + 1);
            CHECK(log[i].at("train_bpc").is_number_float());
            CHECK(log[i].at("learning_rate").get<double>() > 0.0);
            CHECK(log[i].at("tokens_per_s").get<double>() > 0.0);
            CHECK(log[i].contains("gradient_norm") == (run.recipe().clip_norm > 0.0));
            CHECK(log[i].contains("valid_bpc_part") == (i + 1 == 5 || i + 1 == 10));
            if (i + 1 == 12) sum += log[i].at("train_bpc").get<double>();
        }
        CHECK(sum == Approx(result.train_bpc));  // the last tenth of 12 steps is one
        CHECK(log[0].at("learning_rate").get<double>() == Approx(run.recipe().learning_rate));
        CHECK(log[11].at("learning_rate").get<double>() == Approx(0.1 * run.recipe().learning_rate));
        // The first loss is nearly that of flat logits of 17 characters; logits of unit scale add about half a nat.
        const double extra = run.recipe().scaling == Scaling::unit ? 0.5 * train::bits_per_nat : 0.0;
        CHECK(log[0].at("train_bpc").get<double>() == Approx(std::log2(17.0) + extra).epsilon(0.06));

        const std::string narration = text_of(out.get());
        CHECK(narration.starts_with(concatenate("recipe      ", recipe, ": ")));
        CHECK(narration.find("vocabulary of 17 characters") != std::string::npos);
        CHECK(narration.find(train::precision_table(run.state())) != std::string::npos);
        CHECK(narration.find("step 5: ") != std::string::npos);
        CHECK(text_of(progress.get()).find("step 12/12") != std::string::npos);
    }
}

TEST_CASE("language run: quiet writes nothing; the same seed gives the same run, parts and threads aside") {
    const test::TemporaryFolder folder;
    const auto data = folder.write("text.txt", proverb(60));
    const auto run_with = [&](auto&& change) {
        auto options = small(data);
        options.quiet = true;
        change(options);
        const File out = temporary_file();
        train::LanguageRun run(options);
        const auto result = run.run(out.get(), out.get());
        CHECK(text_of(out.get()).empty());
        return result;
    };
    const auto first = run_with([](auto&) {});
    const auto again = run_with([](auto& o) { o.threads = 2, o.eval_every = 1; });
    CHECK(again.train_bpc == first.train_bpc);
    CHECK(again.valid_bpc == first.valid_bpc);
    CHECK(again.sample == first.sample);
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
        train::LanguageRun run(options);
        std::string message;
        try {
            static_cast<void>(run.run(out.get(), out.get()));
        } catch (const train::RunFailed& failure) {
            message = failure.what();
        }
        INFO(recipe << ": " << message);
        CHECK(std::regex_match(
            message,
            std::regex("train: the (loss|gradient norm) is (nan|-nan|inf) at step [2-9]; try a lower --lr \\(it is 3e\\+38\\)")));
        const auto log = lines_of(options.log);
        CHECK(log.size() >= 1);
        CHECK(log.size() < 12);
        for (std::size_t i = 0; i < log.size(); ++i) CHECK(log[i].at("step") == i + 1);
        CHECK(test::TemporaryFolder::read(options.log).back() == '\n');

        // Found in the last evaluation where no step follows.
        options.steps = 1;
        train::LanguageRun one(options);
        message.clear();
        try {
            static_cast<void>(one.run(out.get(), out.get()));
        } catch (const train::RunFailed& failure) {
            message = failure.what();
        }
        CHECK(std::regex_match(
            message,
            std::regex("train: the validation loss is (nan|-nan|inf) after step 1; try a lower --lr \\(it is 3e\\+38\\)")));
    }
}

TEST_CASE("language run: a log that cannot be written any more is a failed run, not bad arguments") {
    if (!std::filesystem::exists("/dev/full")) return;
    const test::TemporaryFolder folder;
    auto options = small(folder.write("text.txt", proverb(60)));
    options.log = "/dev/full";
    const File out = temporary_file();
    train::LanguageRun run(options);
    std::string message;
    try {
        static_cast<void>(run.run(out.get(), out.get()));
    } catch (const train::RunFailed& failure) {
        message = failure.what();
    }
    CHECK(message == "log: /dev/full cannot be written");
}

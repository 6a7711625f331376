#include "server/transport/web/metrics/scraper.h"

#include <zlib.h>

#include <future>
#include <string>
#include <vector>

#include "tests/unit/transport/web/metrics/fixture.h"

namespace sluice::metrics {
namespace {

using ::testing::HasSubstr;

class ScraperTest : public MetricsTest {
 protected:
  static std::string Unzip(const std::string& bytes) {
    std::string text(1 << 20, '\0');
    z_stream stream{};
    EXPECT_EQ(inflateInit2(&stream, 15 + 16), Z_OK);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream.avail_in = static_cast<uInt>(bytes.size());
    stream.next_out = reinterpret_cast<Bytef*>(text.data());
    stream.avail_out = static_cast<uInt>(text.size());
    EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
    text.resize(stream.total_out);
    inflateEnd(&stream);
    return text;
  }

  static Scraper::Body Scrape(Scraper& scraper, bool gzip) {
    std::promise<Scraper::Body> body;
    scraper.Scrape(gzip, [&](Scraper::Body made) { body.set_value(std::move(made)); });
    return body.get_future().get();
  }
};

TEST_F(ScraperTest, AnswersInBothEncodings) {
  Load({PerSecond("api", 10)});
  Scraper scraper(sources_);
  EXPECT_TRUE(Acquire("api", "k").granted);
  const std::string granted = "sluice_acquisitions_total{outcome=\"granted\"} 1\n";
  EXPECT_THAT(*Scrape(scraper, false), HasSubstr(granted));
  EXPECT_THAT(Unzip(*Scrape(scraper, true)), HasSubstr(granted));
}

TEST_F(ScraperTest, CallsThatWaitShareAnAnswer) {
  Scraper scraper(sources_);
  std::vector<std::promise<Scraper::Body>> bodies(100);
  for (std::promise<Scraper::Body>& body : bodies) {
    scraper.Scrape(true, [&](Scraper::Body made) { body.set_value(std::move(made)); });
  }
  std::vector<Scraper::Body> different;
  for (std::promise<Scraper::Body>& body : bodies) {
    Scraper::Body made = body.get_future().get();
    ASSERT_NE(made, nullptr);
    if (different.empty() || different.back() != made) different.push_back(std::move(made));
  }
  EXPECT_LE(different.size(), 20u) << "each answer takes 100 ms at least";
}

TEST_F(ScraperTest, StopEndsCallsThatWait) {
  Scraper scraper(sources_);
  Scrape(scraper, false);
  // Within the pause after an answer.
  std::promise<Scraper::Body> body;
  scraper.Scrape(false, [&](Scraper::Body made) { body.set_value(std::move(made)); });
  scraper.Stop();
  body.get_future().get();
  EXPECT_EQ(Scrape(scraper, false), nullptr);
}

}  // namespace
}  // namespace sluice::metrics

#include "server/envoy/xds/rate_limit_resources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/bounds.h"
#include "ratelimit/config/ratelimit/v3/rls_conf.pb.h"

namespace sluice::envoy {
namespace {

namespace config = ratelimit::config::ratelimit::v3;
using Response = ::envoy::service::discovery::v3::DiscoveryResponse;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

google::protobuf::Any Resource(const std::string& value) {
  google::protobuf::Any resource;
  resource.set_type_url(kRateLimitConfigType);
  resource.set_value(value);
  return resource;
}

Response Of(const std::vector<config::RateLimitConfig>& configs) {
  Response response;
  for (const auto& one : configs) *response.add_resources() = Resource(one.SerializeAsString());
  return response;
}

config::RateLimitConfig Config(const std::string& name, const std::string& domain) {
  config::RateLimitConfig config;
  config.set_name(name);
  config.set_domain(domain);
  return config;
}

std::string Error(Response response) {
  return std::string(ReadResources(&response).status().message());
}

TEST(RateLimitResourcesTest, ReadsEveryField) {
  config::RateLimitConfig config = Config("default/eg", "eg");
  auto* const outer = config.add_descriptors();
  outer->set_key("path");
  outer->set_shadow_mode(true);
  outer->set_detailed_metric(true);
  outer->set_quota_mode(true);
  auto& fields = *outer->mutable_metadata()->mutable_fields();
  fields["list"].mutable_list_value()->add_values()->set_number_value(1.5);
  (*fields["struct"].mutable_struct_value()->mutable_fields())["yes"].set_bool_value(true);
  auto* const inner = outer->add_descriptors();
  inner->set_key("user");
  inner->set_value("ann");
  inner->mutable_rate_limit()->set_unit(config::WEEK);
  inner->mutable_rate_limit()->set_requests_per_unit(7);
  inner->mutable_rate_limit()->set_name("weekly");
  inner->mutable_rate_limit()->add_replaces()->set_name("daily");
  inner->add_descriptors()->mutable_rate_limit()->set_unlimited(true);

  Response response = Of({config, Config("two", "second")});
  const auto tree = ReadResources(&response);
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_THAT(tree->sources, ElementsAre("xds:default/eg", "xds:two"));
  ASSERT_EQ(tree->domains.size(), 2u);
  EXPECT_EQ(tree->domains[0].name, "eg");
  EXPECT_EQ(tree->domains[1].name, "second");
  EXPECT_EQ(tree->domains[1].place.source, 1u);
  const Descriptor& path = tree->domains[0].descriptors.at(0);
  EXPECT_EQ(path.key, "path");
  EXPECT_EQ(path.value, "");
  EXPECT_FALSE(path.rate_limit.has_value());
  EXPECT_TRUE(path.shadow_mode && path.detailed_metric && path.quota_mode);
  ASSERT_EQ(path.metadata.size(), 2u);
  for (const auto& [name, value] : path.metadata) {
    if (name == "list") {
      EXPECT_EQ(value.list.at(0).number, 1.5);
    } else {
      EXPECT_EQ(value.fields.at(0).first, "yes");
      EXPECT_TRUE(value.fields.at(0).second.boolean);
    }
  }
  const Descriptor& user = path.descriptors.at(0);
  EXPECT_EQ(user.value, "ann");
  EXPECT_EQ(user.rate_limit->unit, Unit::kWeek);
  EXPECT_EQ(user.rate_limit->requests_per_unit, 7u);
  EXPECT_EQ(user.rate_limit->name, "weekly");
  EXPECT_EQ(user.rate_limit->replaces.at(0).first, "daily");
  EXPECT_EQ(user.place.line, 0);
  const Descriptor& unlimited = user.descriptors.at(0);
  EXPECT_TRUE(unlimited.rate_limit->unlimited);
  EXPECT_EQ(unlimited.rate_limit->unit, Unit::kUnknown);
}

TEST(RateLimitResourcesTest, ReadsConfigurationWithoutResources) {
  Response response;
  const auto tree = ReadResources(&response);
  ASSERT_TRUE(tree.ok());
  EXPECT_TRUE(tree->domains.empty());
}

TEST(RateLimitResourcesTest, KeepsUnitThatItDoesNotKnowForTheError) {
  config::RateLimitConfig config = Config("a", "a");
  config.add_descriptors()->mutable_rate_limit()->set_unit(static_cast<config::RateLimitUnit>(9));
  Response response = Of({config});
  const auto tree = ReadResources(&response);
  ASSERT_TRUE(tree.ok());
  EXPECT_EQ(tree->domains[0].descriptors[0].rate_limit->unit, Unit::kUnknown);
  EXPECT_EQ(tree->domains[0].descriptors[0].rate_limit->unit_text, "9");
}

TEST(RateLimitResourcesTest, RefusesResourceOfOtherType) {
  Response response = Of({Config("a", "a"), Config("b", "b")});
  response.mutable_resources(1)->set_type_url("type.googleapis.com/envoy.Cluster");
  EXPECT_EQ(Error(response),
            "xds: resource 2: its type is \"type.googleapis.com/envoy.Cluster\"; send "
            "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig");
}

TEST(RateLimitResourcesTest, RefusesBytesThatAreNoRateLimitConfig) {
  for (const std::string& value :
       {std::string("\xff\xff\xff"), std::string("\x12\x02\xc3\x28", 4)}) {
    Response response;
    *response.add_resources() = Resource(value);
    EXPECT_THAT(Error(response), HasSubstr("xds: resource 1: its value is not a RateLimitConfig"));
  }
}

TEST(RateLimitResourcesTest, RefusesDescriptorsThatAreNestedTooDeep) {
  config::RateLimitConfig config = Config("a", "a");
  auto* descriptor = config.add_descriptors();
  for (int i = 0; i < 5000; ++i) descriptor = descriptor->add_descriptors();
  EXPECT_THAT(Error(Of({config})), HasSubstr("nested too deep"));
}

TEST(RateLimitResourcesTest, RefusesTwoResourcesOfOneName) {
  EXPECT_EQ(Error(Of({Config("a", "x"), Config("a", "y")})),
            "xds: resource 2: another resource has the name \"a\"; give each a name of its own");
}

TEST(RateLimitResourcesTest, RefusesTooManyResources) {
  Response response;
  for (size_t i = 0; i <= common::bounds::kMaxXdsResources; ++i) response.add_resources();
  EXPECT_EQ(Error(response), "the response has 10001 resources; send at most 10000");
}

TEST(RateLimitResourcesTest, RefusesTooManyEmptyDescriptors) {
  std::string value;
  for (size_t i = 0; i <= common::bounds::kMaxDescriptors; ++i) value += std::string("\x1a\0", 2);
  Response response;
  *response.add_resources() = Resource(value);
  EXPECT_THAT(Error(response), HasSubstr("xds: resource 1: with it there are more than"));
}

TEST(RateLimitResourcesTest, ReadsTenMegabytesAndFreesThemInTheResponse) {
  config::RateLimitConfig config = Config("a", "a");
  for (int i = 0; i < 1000; ++i) {
    config.add_descriptors()->set_value(std::string(10'000, static_cast<char>('a' + i % 26)));
  }
  Response response = Of({config});
  const auto tree = ReadResources(&response);
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_EQ(tree->domains[0].descriptors.size(), 1000u);
  EXPECT_EQ(response.resources(0).value().size(), 0u);
}

}  // namespace
}  // namespace sluice::envoy

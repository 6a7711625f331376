#include "common/net/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace sluice::net {
namespace {

using ::testing::HasSubstr;

TEST(AddressTest, ParsesAndFormatsAddresses) {
  for (const char* text : {"127.0.0.1:7200", "[::1]:0", "cache.example:6379", "unix:/run/a.sock",
                           "unix:@abstract", "localhost:65535"}) {
    const absl::StatusOr<Address> address = Address::Parse(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->ToString(), text);
  }
}

TEST(AddressTest, RefusesInvalidAddressesAndNamesTheForm) {
  for (const std::string& text :
       {std::string(""), std::string("7200"), std::string(":7200"), std::string("host:"),
        std::string("host:65536"), std::string("host:-1"), std::string("host: 1"),
        std::string("::1:7200"), std::string("[::1:7200"), std::string("[]:1"),
        std::string("unix:"), std::string("unix:@"), "unix:/" + std::string(107, 'x'),
        std::string("a\0b:1", 5)}) {
    const absl::StatusOr<Address> address = Address::Parse(text);
    ASSERT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(address.status().message()), HasSubstr("write HOST:PORT"));
  }
}

TEST(SocketAddressTest, ConvertsNumericAddressesAndRefusesNames) {
  for (const char* text : {"127.0.0.1:7200", "[::1]:7200", "unix:/run/a.sock", "unix:@abstract"}) {
    const auto address = SocketAddress::FromNumeric(*Address::Parse(text));
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->ToString(), text);
  }
  EXPECT_EQ(SocketAddress::FromNumeric(*Address::Parse("cache.example:1")).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SocketAddressTest, PeerNetworkIsAnIpv4AddressOrASlash64) {
  const auto network = [](const std::string& host) {
    return SocketAddress::FromNumeric({.host = host, .unix_path = ""})->PeerNetwork();
  };
  EXPECT_EQ(network("192.0.2.1"), network("::ffff:192.0.2.1"));
  EXPECT_NE(network("192.0.2.1"), network("192.0.2.2"));
  EXPECT_EQ(network("2001:db8:1:2::1"), network("2001:db8:1:2:ffff::9"));
  EXPECT_NE(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
  EXPECT_NE(network("2001:db8:1:2::1"), network("2001:db9:1:2::1"));
}

}  // namespace
}  // namespace sluice::net

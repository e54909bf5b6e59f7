"""Cities that made-up sites stand in: real coordinates and time zones."""

from typing import NamedTuple


class Metro(NamedTuple):
    area: tuple[str, str]
    code: str
    name: str
    latitude: float
    longitude: float
    time_zone: str


_EU_WEST = ("eu-west", "Europe West")
_EU_EAST = ("eu-east", "Europe East")
_US_EAST = ("us-east", "US East")
_US_WEST = ("us-west", "US West")

METROS = (
    Metro(_EU_WEST, "AMS", "Amsterdam", 52.3676, 4.9041, "Europe/Amsterdam"),
    Metro(_EU_WEST, "FRA", "Frankfurt", 50.1109, 8.6821, "Europe/Berlin"),
    Metro(_EU_WEST, "MAD", "Madrid", 40.4168, -3.7038, "Europe/Madrid"),
    Metro(_EU_WEST, "PAR", "Paris", 48.8566, 2.3522, "Europe/Paris"),
    Metro(_EU_WEST, "LON", "London", 51.5074, -0.1278, "Europe/London"),
    Metro(_EU_WEST, "MIL", "Milan", 45.4642, 9.19, "Europe/Rome"),
    Metro(_EU_WEST, "MUC", "Munich", 48.1351, 11.582, "Europe/Berlin"),
    Metro(_EU_WEST, "LYS", "Lyon", 45.764, 4.8357, "Europe/Paris"),
    Metro(_EU_WEST, "DUB", "Dublin", 53.3498, -6.2603, "Europe/Dublin"),
    Metro(_EU_WEST, "BRU", "Brussels", 50.8503, 4.3517, "Europe/Brussels"),
    Metro(_EU_WEST, "ZRH", "Zurich", 47.3769, 8.5417, "Europe/Zurich"),
    Metro(_EU_WEST, "LIS", "Lisbon", 38.7423, -9.16, "Europe/Lisbon"),
    Metro(_EU_EAST, "WAW", "Warsaw", 52.2297, 21.0122, "Europe/Warsaw"),
    Metro(_EU_EAST, "PRG", "Prague", 50.0755, 14.4378, "Europe/Prague"),
    Metro(_EU_EAST, "VIE", "Vienna", 48.2082, 16.3738, "Europe/Vienna"),
    Metro(_EU_EAST, "BUD", "Budapest", 47.4979, 19.0402, "Europe/Budapest"),
    Metro(_EU_EAST, "BUH", "Bucharest", 44.4268, 26.1025, "Europe/Bucharest"),
    Metro(_EU_EAST, "SOF", "Sofia", 42.6977, 23.3219, "Europe/Sofia"),
    Metro(_EU_EAST, "KRK", "Krakow", 50.0647, 19.945, "Europe/Warsaw"),
    Metro(_EU_EAST, "VNO", "Vilnius", 54.6872, 25.2797, "Europe/Vilnius"),
    Metro(_US_EAST, "NYC", "New York", 40.7431, -73.92, "America/New_York"),
    Metro(_US_EAST, "ATL", "Atlanta", 33.749, -84.388, "America/New_York"),
    Metro(_US_EAST, "CHI", "Chicago", 41.8781, -87.75, "America/Chicago"),
    Metro(_US_EAST, "BOS", "Boston", 42.3601, -71.15, "America/New_York"),
    Metro(_US_EAST, "PHL", "Philadelphia", 39.9526, -75.1652, "America/New_York"),
    Metro(_US_EAST, "WAS", "Washington", 38.9072, -77.0369, "America/New_York"),
    Metro(_US_EAST, "CLT", "Charlotte", 35.2271, -80.8431, "America/New_York"),
    Metro(_US_EAST, "DTW", "Detroit", 42.3314, -83.15, "America/Detroit"),
    Metro(_US_EAST, "MSP", "Minneapolis", 44.9778, -93.265, "America/Chicago"),
    Metro(_US_EAST, "STL", "St. Louis", 38.627, -90.1994, "America/Chicago"),
    Metro(_US_EAST, "BNA", "Nashville", 36.1627, -86.7816, "America/Chicago"),
    Metro(_US_WEST, "DFW", "Dallas", 32.7767, -96.797, "America/Chicago"),
    Metro(_US_WEST, "DEN", "Denver", 39.7392, -104.9903, "America/Denver"),
    Metro(_US_WEST, "LAX", "Los Angeles", 34.0522, -118.2437, "America/Los_Angeles"),
    Metro(_US_WEST, "PHX", "Phoenix", 33.4484, -112.074, "America/Phoenix"),
    Metro(_US_WEST, "SEA", "Seattle", 47.6062, -122.25, "America/Los_Angeles"),
    Metro(_US_WEST, "PDX", "Portland", 45.5152, -122.6784, "America/Los_Angeles"),
    Metro(_US_WEST, "SLC", "Salt Lake City", 40.7608, -111.891, "America/Denver"),
    Metro(_US_WEST, "LAS", "Las Vegas", 36.1699, -115.1398, "America/Los_Angeles"),
    Metro(_US_WEST, "ABQ", "Albuquerque", 35.0844, -106.6504, "America/Denver"),
    Metro(_US_WEST, "SAC", "Sacramento", 38.5816, -121.4944, "America/Los_Angeles"),
)

AREAS = (_EU_WEST, _US_EAST, _EU_EAST, _US_WEST)
"""Areas in the order in which fleets are filled: a fleet of two has one on each continent."""

DISTRICTS = (
    "Central Station",
    "Harbour North",
    "Harbour South",
    "Airport Road",
    "Market Square",
    "Stadium East",
    "Stadium West",
    "University",
    "Hospital Hill",
    "River Bridge",
    "Mill Lane",
    "Old Town",
    "Science Park",
    "Ring Road North",
    "Ring Road East",
    "Ring Road South",
    "Ring Road West",
    "Exhibition Centre",
    "Botanic Garden",
    "Water Tower",
    "Grand Avenue",
    "Cathedral Quarter",
    "Opera House",
    "Freight Yard",
    "Tram Depot",
    "Canal Street",
    "Lakeside",
    "Green Hill",
    "Chapel Street",
    "Brewery Yard",
    "City Hall",
    "Library Square",
    "Foundry Lane",
    "Orchard Road",
    "Meadow View",
    "Castle Hill",
    "North Gate",
    "South Gate",
    "East Gate",
    "West Gate",
    "Victory Park",
    "Union Square",
    "Cedar Grove",
    "Maple Street",
    "Quarry Road",
    "Telegraph Hill",
    "Mission Street",
    "Lighthouse Point",
    "Windmill Road",
    "Garden District",
    "Fairground",
    "Boulevard East",
    "Boulevard West",
    "Sports Campus",
)

package replica

// RaceEnabled is for the tests from outside.
const RaceEnabled = raceEnabled

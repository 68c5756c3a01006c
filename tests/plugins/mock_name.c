/* mock_name.c - the name of the mock device (tests/mock_device.c) in a plug-in. */
extern const char kr_mock_name[];
const char kr_mock_name[] = MOCK_NAME;

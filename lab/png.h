/* png.h - grey pictures as PNG files, uncompressed: any browser shows them, and nothing is needed to write them.
 *
 *   cli_picture p = cli_picture_new(280, 28);
 *   cli_picture_put(&p, 0, 0, digit, 28, 28);
 *   cli_picture_write(&p, "digits.png");
 *   cli_picture_free(&p);
 */
#ifndef KR_LAB_PNG_H
#define KR_LAB_PNG_H

#include <stdbool.h>

typedef struct cli_picture {
    int width, height;
    unsigned char *grey; /* row after row, 0 black, 255 white; NULL: there was no memory */
} cli_picture;

/* Black. Without memory all the others do nothing, but for the complaint of write. */
cli_picture cli_picture_new(int width, int height);
void cli_picture_free(cli_picture *picture);

/* An image, or a rectangle of one shade; what lies outside is cut off. */
void cli_picture_put(cli_picture *picture, int x, int y, const unsigned char *grey, int width, int height);
void cli_picture_fill(cli_picture *picture, int x, int y, int width, int height, int shade);

/* The file holds all of it, or is as it was; false after a complaint. */
bool cli_picture_write(const cli_picture *picture, const char *path);

#endif
